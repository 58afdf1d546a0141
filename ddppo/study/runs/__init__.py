"""The runs of a folder side by side: what they are, what came of them, how two differ. Imports no trainer."""
