"""The files of a report. Read tables (rows and cells), chart, figures, topologies, html, files, in this order."""
