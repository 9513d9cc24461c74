import tiny_training
import wonderful_optimizers  # nobody has it

tiny_training.train(wonderful_optimizers.NUM_EPOCHS)
