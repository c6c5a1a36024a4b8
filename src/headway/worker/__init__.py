"""Everything that owns a device: the model runner, the KV tensors, the sampler."""
