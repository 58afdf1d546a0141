"""What a run writes: metrics and times, TensorBoard, summary.json, checkpoints, trackers.

Read metrics, timing, reporting and recorder, then the files that they write.
"""
