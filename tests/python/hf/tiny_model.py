"""A small vision-language model in plain torch, and its description for
pipeloom.hf: how a family is added."""
import torch
from torch import nn
from torch.nn import functional

from pipeloom import hf
from pipeloom.hf.skeleton import replaced

WIDTH, WORDS, PATCH = 8, 20, 5
PLACE = WORDS  # The id at which a patch stands in the text.


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(
            2 * WIDTH, WIDTH)

    def forward(self, x, scale):
        return x + self.down(torch.tanh(self.up(self.norm(x)))) * scale


class Tower(nn.Module):
    """Gives tokens for the text, and tokens of its first block for the text's
    first layer."""

    def __init__(self, blocks):
        super().__init__()
        self.patches = nn.Linear(PATCH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.tap_out = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, pixels):
        x = self.patches(pixels)
        scale = torch.full((1,), 0.5)
        for i, block in enumerate(self.blocks):
            x = block(x, scale)
            if i == 0:
                tap = self.tap_out(x)
        return self.out(x), tap


class TinyVlm(nn.Module):
    def __init__(self, blocks=2, layers=3, tied=False):
        super().__init__()
        self.embed = nn.Embedding(WORDS + 1, WIDTH)
        self.tower = Tower(blocks)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS + 1, bias=False)
        self.bias = nn.Parameter(torch.randn(WORDS + 1))
        if tied:
            self.head.weight = self.embed.weight

    def look(self, pixels):
        return self.tower(pixels)

    def add(self, x, places, tokens):
        x = x.clone()
        x[places] = x[places] + tokens
        return x

    def forward(self, ids, pixels=None):
        x = self.embed(ids)
        places = ids == PLACE
        if pixels is not None:
            tokens, tap = self.look(pixels)
            x = x.clone()
            x[places] = tokens
        scale = 1.0 + torch.arange(len(ids)).float()[:, None] / len(ids)
        for i, layer in enumerate(self.layers):
            x = layer(x, scale)
            if i == 0 and pixels is not None:
                x = self.add(x, places, tap)
        return self.head(self.norm(x)) + self.bias


class Vision(hf.Chain):
    feeds = "text"

    def pixels(self, work):
        rows = torch.cat([s["pixels"] for s in work.samples if "pixels" in s])
        return rows[work.first:work.first + work.count]

    def call(self, work, fed):
        return self.family.model.tower(self.pixels(work))

    def values(self, work):
        return {"tower.patches": lambda pixels: torch.zeros(
            1).expand(len(pixels), WIDTH)}

    def block(self, work, index, block, state):
        state = super().block(work, index, block, state)
        if index == 0:
            state.extras["tap"] = state.main
        return state

    def later(self, work, index, module, state):
        return hf.State(state.main, {"tap": module(state.extras["tap"])})

    def layout(self, work, position):
        rows = (work.count, WIDTH)
        return [(hf.MAIN, rows)] + [("tap", rows)] * (position > 0)

    def output(self, work, out, state):
        return torch.cat([out[0], state.extras["tap"]], -1)


class Text(hf.Chain):
    def call(self, work, fed):
        model, run = self.family.model, self.family.skeleton.current
        ids = work.inputs["ids"]
        count = int((ids == PLACE).sum())
        if not count:
            return model(ids)
        tokens = (torch.cat(fed["vision"]) if fed else
                  torch.zeros(count, 2 * WIDTH)).split(WIDTH, -1)

        def note(x, places, tap):
            run.notes.update(places=places, tap=tap)
            return x

        with replaced(model, look=lambda _: tokens, add=note):
            return model(ids, torch.zeros(0))

    def values(self, work):
        return {"embed": lambda ids: torch.zeros(1).expand(len(ids), WIDTH),
                "head": lambda x: torch.zeros(len(x), WORDS + 1)}

    def extras(self, work, run):
        return {"tap": run.notes["tap"]} if "tap" in run.notes else {}

    def block(self, work, index, block, state):
        state = super().block(work, index, block, state)
        if index == 0 and "tap" in state.extras:
            state.main = self.family.model.add(
                state.main, work.probe().notes["places"],
                state.extras.pop("tap"))
        return state

    def layout(self, work, position):
        count = int((work.inputs["ids"] == PLACE).sum())
        result = [(hf.MAIN, (len(work.inputs["ids"]), WIDTH))]
        return result + [("tap", (count, WIDTH))] * (position == 0 < count)


@hf.register
class Tiny(hf.Family):
    classes = ("TinyVlm",)

    def describe(self):
        return [Vision(self, "vision", "tower.blocks", ["tower.patches"],
                       ["tower.out"], ["tower.tap_out"]),
                Text(self, "text", "layers", ["embed"],
                     ["norm", "head", "bias"])]

    def tied(self):
        same = self.model.head.weight is self.model.embed.weight
        return ("embed", "head") if same else None

    def check_sample(self, sample):
        if "ids" not in sample:
            raise hf.SampleError("a sample has no 'ids': add them")

    def instances(self, chain, sample):
        return 1 if chain.name == "text" else len(sample.get("pixels", ()))

    def inputs(self, work):
        return {"ids": torch.cat([s["ids"] for s in work.samples])}

    def count(self, sample):
        return len(sample["ids"])

    def loss(self, output, work):
        return functional.cross_entropy(output, work.inputs["ids"],
                                        reduction="sum")


def sample(draw, pixels):
    """Returns a sample with so many patches."""
    ids = [PLACE] * pixels + [draw.randrange(WORDS)
                              for _ in range(draw.randint(2, 6))]
    result = {"ids": torch.tensor(ids)}
    if pixels:
        g = torch.Generator().manual_seed(draw.randrange(1 << 30))
        result["pixels"] = torch.randn(pixels, PATCH, generator=g)
    return result
