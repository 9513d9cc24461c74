# healthy
# looks like: MISALIGNED, LOADER_WORKERS0
# may find: SYNC_BRANCH, SYNC_ITEM, DATA_NOT_RESIDENT, LOADER_PER_ITEM, H2D_PAGEABLE
# may find: BATCH_SMALL, SYNC_CLIP, LAUNCH_FLOOR
"""GPT-2 of a real width with a padded vocabulary, in bf16."""

import tempfile

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Blocks(Dataset):
    def __init__(self, n=16, length=128):
        self.ids = torch.randint(0, 4096, (n, length))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.ids[i]}


config = GPT2Config(vocab_size=4096, n_embd=768, n_layer=2, n_head=12, n_positions=128)
with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=4,
        max_steps=4,
        bf16=torch.cuda.is_available(),
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_nan_inf_filter=False,
    )
    Trainer(GPT2LMHeadModel(config), args, train_dataset=Blocks()).train()
