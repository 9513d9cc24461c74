raise ValueError("the learning rate is missing from the configuration")
