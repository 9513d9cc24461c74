# may find: LAUNCH_FLOOR, BATCH_SMALL, CPU_ROUNDTRIP, DATA_NOT_RESIDENT, H2D_PAGEABLE
import torch
import torch.nn as nn

device = "cuda" if torch.cuda.is_available() else "cpu"


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(32, 64, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(128, 2000)

    def forward(self, x):
        return self.fc(self.lstm(x)[0])


model = Tagger().to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters())
features = torch.randn(16, 40, 32, device=device)
labels = torch.randint(0, 2000, (16, 40))

for step in range(15):
    optimizer.zero_grad()
    logits = model(features)
    loss = criterion(logits.cpu().view(-1, 2000), labels.view(-1))  # finds: PART_ON_CPU
    loss.backward()
    optimizer.step()
print(loss.item())
