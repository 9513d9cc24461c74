# may find: LAUNCH_FLOOR, BATCH_SMALL
import torch
import torch.nn as nn


class RNN(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)

    def forward(self, x, hidden):
        hidden = torch.tanh(self.i2h(torch.cat((x, hidden), 1)))
        return self.h2o(hidden), hidden


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
rnn = RNN(10, 64, 5).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(rnn.parameters(), lr=0.01)


def train(sequence, label):
    hidden = torch.zeros(sequence.size(1), rnn.hidden_size, device=device)
    optimizer.zero_grad()
    for t in range(sequence.size(0)):  # finds: TIME_LOOP
        output, hidden = rnn(sequence[t], hidden)
    loss = criterion(output, label)
    loss.backward()
    optimizer.step()
    return loss


sequence = torch.randn(50, 32, 10, device=device)
label = torch.randint(0, 5, (32,), device=device)
for it in range(20):
    loss = train(sequence, label)
print(loss.item())
