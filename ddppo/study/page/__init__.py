"""How a report is shown: the page, its figures and tables, and the files."""
