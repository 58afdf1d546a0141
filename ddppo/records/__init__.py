"""Records of a run. Read metrics, timing, reporting and recorder, then the files that they write."""
