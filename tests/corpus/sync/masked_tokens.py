# may find: LAUNCH_FLOOR, BATCH_SMALL
# In[1]:
import torch
from torch import nn
import torch.nn.functional as F

# In[2]:
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCAB, DIM, SEQ = 1000, 64, 32

# In[3]:
encoder_layer = nn.TransformerEncoderLayer(DIM, 4, 128, dropout=0.0, batch_first=True)


class MaskedLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.body = encoder_layer
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, ids):
        return self.body(self.embed(ids))


# In[4]:
model = MaskedLM().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
corpus = torch.randint(5, VOCAB, (512, SEQ), device=device)

# In[5]:
for step in range(40):
    ids = corpus[(step * 16) % 512 : (step * 16) % 512 + 16]
    mask = torch.rand(ids.shape, device=device) < 0.15
    hidden = model(ids.masked_fill(mask, 1))
    logits = model.head(hidden[mask])  # finds: SYNC_SHAPE
    loss = F.cross_entropy(logits, ids[mask])  # finds: SYNC_SHAPE
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# In[6]:
print(loss.item())
