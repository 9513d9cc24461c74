import tiny_training

if __name__ == "__main__":
    tiny_training.train(num_workers=2, persistent_workers=True)
