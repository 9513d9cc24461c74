import tiny_training

num_epochs = int(input("How many epochs? "))
tiny_training.train(num_epochs)
