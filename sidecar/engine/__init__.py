"""The fold: records in, findings and halts out; no clock and no IO."""
