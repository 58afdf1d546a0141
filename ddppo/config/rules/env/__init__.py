"""The rules of env: environments and who steps them."""
