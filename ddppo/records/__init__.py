"""Records of a run. Read metrics, timing, reporting, recorder, then the files: jsonl, summary, checkpoint, tensorboard."""
