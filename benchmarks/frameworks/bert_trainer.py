"""A BERT of two layers, trained and evaluated by the Trainer of transformers."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class RandomSentences(Dataset):
    """Sentences of 32 tokens, in two classes."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        """Return the number of sentences."""
        return self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Return a sentence with its label."""
        tokens = torch.randint(5, 100, (32,), generator=torch.Generator().manual_seed(index))
        return {
            "input_ids": tokens,
            "attention_mask": torch.ones_like(tokens),
            "labels": torch.tensor(index % 2),
        }


config = BertConfig(
    vocab_size=100,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=128,
    max_position_embeddings=32,
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=16,
        max_steps=1_000,
        eval_strategy="steps",
        eval_steps=100,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    Trainer(
        model=BertForSequenceClassification(config),
        args=arguments,
        train_dataset=RandomSentences(2_048),
        eval_dataset=RandomSentences(256),
    ).train()
