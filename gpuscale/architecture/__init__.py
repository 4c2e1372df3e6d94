"""What a model's shape implies: parameters and FLOPs, itemised and by a second route."""
