#!/usr/bin/env python3
"""Makes tests/reference/fixtures/prototypes with PyTorch and transformers 5: the first gradients of the programs dpo,
gan, reward, digits, wgan and mamba of tools/examples and the first Hessian-vector products of sophia, in f64, from the
weights that these programs begin with. Not needed to run the tests; to make the files again:

    for program in dpo gan reward digits sophia wgan mamba; do build/consumer/$program FOLDER; done
    python3 tests/reference/make_prototype_fixtures.py FOLDER dpo gan reward digits sophia wgan mamba

FOLDER is where the programs write NAME.weights.safetensors and NAME.batch.safetensors.
"""
import pathlib
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

FIXTURES = pathlib.Path(__file__).parent / "fixtures" / "prototypes"
torch.set_default_dtype(torch.float64)


def load(folder, name):
    return {key: value.double() if value.is_floating_point() else value.long()
            for key, value in load_file(folder / f"{name}.safetensors").items()}


def weights_of(folder, program):
    return {key: value.requires_grad_() for key, value in load(folder, f"{program}.weights").items()}


def llama(vocabulary, tokens):
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=vocabulary, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=tokens, rms_norm_eps=1e-5, tie_word_embeddings=False, rope_theta=10000.0))


def call(model, weights, ids, **options):
    return torch.func.functional_call(model, weights, (ids,), options, strict=False)


def save(name, weights):
    FIXTURES.mkdir(exist_ok=True)
    save_file({key: value.grad.float() for key, value in weights.items() if value.grad is not None},
              FIXTURES / f"{name}.safetensors")


def reward(folder):
    weights, ids = weights_of(folder, "reward"), load(folder, "reward.batch")["ids"]
    model = llama(10, ids.shape[1])
    decoder = {key.removeprefix("model."): value for key, value in weights.items() if key.startswith("model.")}
    states = call(model.model, decoder, ids, output_hidden_states=True).hidden_states
    rewards = torch.cat([states[1][:, -1], states[2][:, -1]], 1) @ weights["reward.weight"].T
    better, worse = rewards.chunk(2)
    (-F.logsigmoid(better - worse)).mean().backward()
    save("reward", weights)


def dpo(folder):
    weights, batch = load(folder, "dpo.weights"), load(folder, "dpo.batch")
    adapters = {key: value.requires_grad_() for key, value in weights.items() if ".lora_" in key}
    base = {key: value for key, value in weights.items() if ".lora_" not in key}
    merged = dict(base)
    for key in base:
        name = key.removesuffix(".weight")
        if name + ".lora_A.weight" in adapters:  # scale: alpha / rank
            merged[key] = base[key] + 2.0 * adapters[name + ".lora_B.weight"] @ adapters[name + ".lora_A.weight"]
    model = llama(12, batch["ids"].shape[1])

    def log_probabilities(values):
        logits = call(model, values, batch["ids"]).logits
        return -F.cross_entropy(logits.transpose(1, 2), batch["targets"], ignore_index=-1, reduction="none").sum(1)

    better, worse = (log_probabilities(merged) - log_probabilities(base).detach()).chunk(2)
    (-F.logsigmoid(0.5 * (better - worse))).mean().backward()
    save("dpo", adapters)


def gan(folder):
    weights, batch = weights_of(folder, "gan"), load(folder, "gan.batch")

    def net(name, x, frozen=False):
        w1, b1, w2, b2 = (weights[f"{name}.{key}"].detach() if frozen else weights[f"{name}.{key}"]
                          for key in ("w1", "b1", "w2", "b2"))
        return F.linear(torch.tanh(F.linear(x, w1, b1)), w2, b2)

    fake = net("generator", batch["noise"])
    ones, zeros = torch.ones_like(fake), torch.zeros_like(fake)
    loss = F.binary_cross_entropy_with_logits
    (loss(net("discriminator", batch["real"]), ones) + loss(net("discriminator", fake.detach()), zeros)
     + loss(net("discriminator", fake, frozen=True), ones)).backward()
    save("gan", weights)


def digits(folder):
    w, batch = weights_of(folder, "digits"), load(folder, "digits.batch")
    edges = F.relu(F.conv2d(batch["x"] / 255, w["first.weight"], w["first.bias"], padding=1))
    shapes = F.conv2d(F.max_pool2d(edges, 2), w["second.weight"], padding=1)
    normed = F.relu(F.group_norm(shapes, 4, w["norm.weight"], w["norm.bias"]))
    pooled = F.max_pool2d(normed, normed.shape[-1] // 3)
    F.cross_entropy(F.linear(pooled.flatten(1), w["head.weight"]), batch["labels"]).backward()
    save("digits", w)


def wgan(folder):
    weights, batch = weights_of(folder, "wgan"), load(folder, "wgan.batch")

    def critic(x):
        for name in ("first", "second"):
            x = torch.tanh(F.linear(x, weights[name + ".weight"], weights[name + ".bias"]))
        return F.linear(x, weights["last.weight"], weights["last.bias"])

    between = (batch["made"] + batch["mix"] * (batch["real"] - batch["made"])).requires_grad_()
    slope, = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    penalty = (slope.norm(dim=1) - 1).square().mean()
    (critic(batch["made"]).mean() - critic(batch["real"]).mean() + penalty).backward()
    save("wgan", weights)


def sophia(folder):
    loaded, ids = load(folder, "sophia.weights"), load(folder, "sophia.batch")["ids"]
    weights = {key: value.requires_grad_() for key, value in loaded.items() if not key.endswith(".sign")}
    width, tokens, period = weights["mixed.weight"].shape[0], ids.shape[1], 4
    x = weights["ids.weight"][ids] + weights["places.weight"]
    q, k, v = F.linear(x, weights["qkv.weight"], weights["qkv.bias"]).split(width, 2)
    later = torch.ones(tokens, tokens).triu(1).bool()
    attended = (q @ k.transpose(1, 2) / width ** 0.5).masked_fill(later, -torch.inf).softmax(-1) @ v
    x = x + F.linear(attended, weights["mixed.weight"], weights["mixed.bias"])
    x = F.layer_norm(x, (width,), weights["norm.weight"], weights["norm.bias"])
    logits = F.linear(x, weights["head.weight"], weights["head.bias"])[:, period - 1:-1]
    loss = F.cross_entropy(logits.transpose(1, 2), ids[:, period:])
    slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
    signs = [loaded[key + ".sign"] for key in weights]
    for value, product in zip(weights.values(), torch.autograd.grad(slopes, list(weights.values()), signs)):
        value.grad = product
    save("sophia", weights)


def mamba(folder):
    w, batch = weights_of(folder, "mamba"), load(folder, "mamba.batch")
    x = w["ids"][batch["ids"]]
    inner, states = w["log_decay"].shape
    u, gate = F.linear(F.rms_norm(x, x.shape[2:], w["norm"], 1e-5), w["in"]).split(inner, 2)
    u = F.silu(F.conv1d(F.pad(u.mT, (2, 0)), w["conv"], w["conv_bias"], groups=inner).mT)
    added, read = F.linear(u, w["select"]).split(states, 2)
    time = F.softplus(F.linear(u, w["pace"], w["pace_bias"]))
    h, outputs = torch.zeros(x.shape[0], inner, states), []
    for t in range(x.shape[1]):
        h = torch.exp(-time[:, t, :, None] * w["log_decay"].exp()) * h
        h = h + (time * u)[:, t, :, None] * added[:, t, None]
        outputs.append((h * read[:, t, None]).sum(2))
    y = torch.stack(outputs, 1) + u * w["skip"]
    x = x + F.linear(y * F.silu(gate), w["out"])
    logits = F.linear(F.rms_norm(x, x.shape[2:], w["last_norm"], 1e-5), w["head"])
    F.cross_entropy(logits.transpose(1, 2), batch["letters"]).backward()
    save("mamba", w)


PROGRAMS = {"dpo": dpo, "gan": gan, "reward": reward, "digits": digits, "sophia": sophia, "wgan": wgan, "mamba": mamba}
if __name__ == "__main__":
    for program in sys.argv[2:]:
        PROGRAMS[program](pathlib.Path(sys.argv[1]))
