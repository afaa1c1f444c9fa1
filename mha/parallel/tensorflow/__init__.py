"""TensorFlow on several devices: batches by `tf.distribute`, as it is; heads by `mha.parallel.shard`."""
