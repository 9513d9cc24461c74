"""A tiny BERT with random weights, trained by the Trainer of transformers."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class RandomSentences(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        chance = torch.Generator().manual_seed(index)
        tokens = torch.randint(5, 100, (12,), generator=chance)
        return {
            "input_ids": tokens,
            "attention_mask": torch.ones_like(tokens),
            "labels": torch.tensor(index % 2),
        }


config = BertConfig(
    vocab_size=100,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=16,
)
with tempfile.TemporaryDirectory() as output_dir:
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=TrainingArguments(
            output_dir=output_dir,
            per_device_train_batch_size=8,
            max_steps=1_000,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=RandomSentences(),
    )
    trainer.train()
