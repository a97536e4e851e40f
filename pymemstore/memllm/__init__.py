"""MemLLM at inference: a model that writes the facts it reads, and reads facts before it names an entity."""
