# may find: LAUNCH_FLOOR, BATCH_SMALL, SYNC_BRANCH, SYNC_ITEM, LOADER_PER_ITEM, H2D_PAGEABLE
# may find: DATA_NOT_RESIDENT, SYNC_CLIP
"""Fine-tunes a tiny BERT; every sentence is tokenized again whenever it is read."""

import re
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

WORDS = ["the", "gpu", "was", "slow", "fast", "because", "of", "my", "loader", "and", "model"]


class Sentences(Dataset):
    def __init__(self, n, length=400):
        self.texts = [
            " ".join(WORDS[(i * j + j) % len(WORDS)] for j in range(length)) for i in range(n)
        ]
        self.vocab = {w: k + 3 for k, w in enumerate(WORDS)}

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        ids = []
        for match in re.finditer(r"[a-z]+|[^\sa-z]", self.texts[index]):  # finds: TRANSFORM_CPU
            word = match.group(0)
            for length in range(len(word), 0, -1):
                if word[:length] in self.vocab:
                    ids.append(self.vocab[word[:length]])
                    break
        return {"input_ids": torch.tensor(ids[:32]), "labels": index % 2}


config = BertConfig(
    vocab_size=32,
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=40,
)
with tempfile.TemporaryDirectory() as output_dir:
    args = TrainingArguments(  # or: LOADER_WORKERS0
        output_dir=output_dir,
        per_device_train_batch_size=32,
        max_steps=25,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(BertForSequenceClassification(config), args, train_dataset=Sentences(320))
    trainer.train()  # finds: LOADER_WORKERS0
