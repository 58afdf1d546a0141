"""What runs say: read from their folders, measured, explained, predicted, shown on a page. Imports no trainer."""
