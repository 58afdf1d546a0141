"""What a run writes: the table of metrics, times, metrics.jsonl, TensorBoard, summary.json, checkpoints, trackers."""
