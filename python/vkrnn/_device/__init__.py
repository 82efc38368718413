"""Parts of `vkrnn.devices`: which device is meant, and the strategies that it was tuned to."""
