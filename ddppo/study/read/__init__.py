"""Read files of runs and sort them into studies.

Read record (a run), fields (checked values), summary_file and metrics_file, run_folders (a run folder), foreign (a
table of other runs), selection (studies), in this order. Files may be damaged or foreign, so every value is checked
here, and nowhere else.
"""
