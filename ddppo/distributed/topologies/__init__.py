"""Ways to spread the work over ranks: a file or folder each, with its layout, settings, rules and program."""
