"""Everything between Kafka and the engine: topics, the consuming loop, outputs, dead letters, publishing."""
