"""The contract: records in, findings and halts out, and the schemas made from the same types."""
