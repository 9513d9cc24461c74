# may find: LAUNCH_FLOOR, BATCH_SMALL, H2D_PAGEABLE, DATA_NOT_RESIDENT, TRANSFORM_CPU
# In[1]:
import os
import tempfile

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
root = tempfile.mkdtemp()

# In[2]:
for i in range(64):
    np.savez_compressed(
        os.path.join(root, f"volume_{i}.npz"), scan=np.random.rand(32, 32, 32).astype("float32")
    )


# In[3]:
class Volumes(Dataset):
    def __init__(self, root):
        self.paths = [os.path.join(root, name) for name in os.listdir(root)]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, item):
        with np.load(self.paths[item]) as archive:  # finds: IO_SLOW
            scan = archive["scan"]  # or: IO_SLOW
        return torch.from_numpy(scan).unsqueeze(0)


# In[4]:
loader = DataLoader(  # finds: LOADER_WORKERS0
    Volumes(root), batch_size=8, num_workers=0, pin_memory=True
)
net = nn.Sequential(
    nn.Conv3d(1, 4, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 343, 16)
).to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)

# In[5]:
for epoch in range(2):
    for scan in loader:
        scan = scan.to(device, non_blocking=True)
        loss = net(scan).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# In[6]:
for path in os.listdir(root):
    os.remove(os.path.join(root, path))
os.rmdir(root)
