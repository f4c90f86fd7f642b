"""What levers do to a model, a batch, an optimizer and a process, in this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo.utils
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench import levers
from bench.errors import RefusedError
from bench.levers.attention import SWITCHES, Calls
from bench.measuring.batches import StepBatch, placed, to_device
from bench.measuring.compiling import cannot_compile
from bench.measuring.optimizing import check_pieces, check_remade, made_again
from bench.measuring.step import Trainer
from bench.measuring.wrapped import PrecisionModule
from bench.remaking import remade
from bench.schema import Case
from bench.strategies import registry
from bench.strategies.single import Single
from bench.structure import own_name
from bench.workloads import Batch
from tests.measuring.lever_models import Everything, Plain, SmallViT
from tests.measuring.support import make_case

CPU = torch.device("cpu")


def case_with(strategy: str = "single", **values: str) -> Case:
    case = make_case(strategy)
    for name, value in values.items():
        case = levers.registry.get(name).apply(case, value)
    return case


@pytest.fixture(autouse=True)
def torch_defaults() -> Iterator[None]:
    yield
    levers.set_process(make_case("single"))


def blocks(model: SmallViT) -> tuple[nn.Module, ...]:
    return tuple(model.blocks)


@pytest.mark.parametrize(("every", "wrapped"), [("1", [0, 1, 2]), ("2", [0, 2]), ("3", [0])])
def test_every_nth_block_is_checkpointed_from_the_first(every: str, wrapped: list[int]) -> None:
    model = SmallViT()
    names, own = [name for name, _ in model.named_parameters()], blocks(model)
    made = levers.prepare_model(case_with(checkpoint_every=every), model, own)
    assert [number for number in range(3) if made[number] is not own[number]] == wrapped
    assert list(made) == list(model.blocks)
    assert [own_name(name) for name, _ in model.named_parameters()] == names


def test_a_block_that_is_used_again_is_checkpointed_in_each_place() -> None:
    layer = nn.Sequential(nn.Linear(2, 2))
    model = nn.Sequential(layer, nn.ReLU(), layer)
    (made,) = levers.prepare_model(case_with(checkpoint_every="1"), model, (layer,))
    assert model[0] is model[2] is made and made is not layer


@pytest.mark.parametrize("lever", [{"checkpoint_every": "1"}, {"compile": "blocks"}])
def test_a_block_that_nobody_calls_is_refused(lever: dict[str, str]) -> None:
    model = SmallViT()
    with pytest.raises(RefusedError, match="nobody calls a ModuleList"):
        levers.prepare_model(case_with(**lever), model, (model.blocks,))


def test_blocks_are_compiled_in_place_around_their_checkpoints() -> None:
    model = SmallViT()
    made = levers.prepare_model(case_with(checkpoint_every="1", compile="blocks"), model, blocks(model))
    assert all(block._compiled_call_impl is not None for block in made)
    assert model._compiled_call_impl is None


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("checkpoint_every", "1", "names none"),
        ("compile", "blocks", "names no blocks"),
        ("channels_last", "on", "the model has none"),
        ("cudnn_benchmark", "on", "the model has none"),
        ("sync_batch_norm", "on", "the model has none"),
    ],
)
def test_a_lever_that_finds_nothing_to_act_on_refuses(name: str, value: str, words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        levers.prepare_model(case_with(**{name: value}), nn.Linear(2, 2), ())


def test_sync_batch_norm_replaces_every_batch_norm() -> None:
    model = SmallViT()
    levers.prepare_model(case_with("ddp", sync_batch_norm="on"), model, blocks(model))
    assert isinstance(model.stem[1], nn.SyncBatchNorm)


def test_channels_last_holds_for_weights_and_batches_and_survives_the_copy() -> None:
    model, case = SmallViT(), case_with(channels_last="on")
    levers.prepare_model(case, model, blocks(model))
    assert model.stem[0].weight.is_contiguous(memory_format=torch.channels_last)
    batch = Batch(args=(torch.randn(2, 3, 8, 8),), kwargs={"ids": torch.zeros(2, 5)}, targets=torch.zeros(2))
    made = to_device(levers.prepare_batch(case, batch), CPU)
    assert made.args[0].is_contiguous(memory_format=torch.channels_last) and torch.equal(made.args[0], batch.args[0])
    assert torch.equal(made.kwargs["ids"], batch.kwargs["ids"])


@pytest.mark.parametrize("value", ["default", "math", "efficient", "flash"])
def test_attention_switches_exactly_its_kernel_on(value: str) -> None:
    levers.set_process(case_with(attention=value))
    cuda = torch.backends.cuda
    on = {
        "math": cuda.math_sdp_enabled(), "efficient": cuda.mem_efficient_sdp_enabled(),
        "flash": cuda.flash_sdp_enabled(), "cudnn": cuda.cudnn_sdp_enabled(),
    }  # fmt: skip
    assert on == {kernel: value in ("default", kernel) for kernel in SWITCHES}


def test_cudnn_benchmark_is_set_and_reset() -> None:
    for value in ("on", "off"):
        levers.set_process(case_with(cudnn_benchmark=value))
        assert torch.backends.cudnn.benchmark is (value == "on")


@pytest.mark.parametrize("kernel", ["for_loop", "foreach", "fused"])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD])
def test_an_optimizer_is_made_again_with_its_groups_and_the_kernel(kind: Any, kernel: str) -> None:
    weights = [nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(2))]

    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        first, second = parameters
        made: torch.optim.Optimizer = kind([{"params": [first], "weight_decay": 0.5}, {"params": [second]}], lr=0.25)
        return made

    found = levers.optimizer_factory(case_with(optimizer_kernel=kernel), make)(weights)
    assert type(found) is kind and [group["weight_decay"] for group in found.param_groups][0] == 0.5
    for group in found.param_groups:
        assert group["lr"] == 0.25
        assert bool(group["fused"]) is (kernel == "fused") and bool(group["foreach"]) is (kernel == "foreach")


def test_an_optimizer_without_the_kernel_is_refused() -> None:
    factory = levers.optimizer_factory(case_with(optimizer_kernel="fused"), torch.optim.Rprop)
    with pytest.raises(RefusedError, match="Rprop has no such implementation"):
        factory([nn.Parameter(torch.ones(2))])
    levers.optimizer_factory(case_with(optimizer_kernel="foreach"), torch.optim.Rprop)([nn.Parameter(torch.ones(2))])


class OtherArguments(torch.optim.SGD):
    def __init__(self, params: Any, rate_of_learning: float) -> None:
        super().__init__(params, lr=rate_of_learning)


def test_an_optimizer_that_cannot_be_made_again_is_refused() -> None:
    with pytest.raises(RefusedError, match="OtherArguments cannot be made again"):
        remade(OtherArguments([nn.Parameter(torch.ones(2))], 0.1), OtherArguments)


class OtherNames(torch.optim.Optimizer):
    def __init__(self, params: Any, lr: float, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "momentum": beta})


def test_an_optimizer_that_would_lose_a_setting_is_refused() -> None:
    with pytest.raises(RefusedError, match="OtherNames made again has another momentum"):
        remade(OtherNames([nn.Parameter(torch.ones(2))], 0.1, beta=0.5), OtherNames)
    assert remade(OtherNames([nn.Parameter(torch.ones(2))], 0.1), OtherNames).defaults == {"lr": 0.1, "momentum": 0.9}


def test_what_a_group_alone_holds_stays() -> None:
    group = {"params": [nn.Parameter(torch.ones(2))], "left_out": True}
    (made,) = remade(torch.optim.AdamW([group], lr=torch.tensor(0.5)), torch.optim.AdamW).param_groups
    assert made["left_out"] is True and float(made["lr"]) == 0.5


def test_a_kernel_that_moves_parameters_otherwise_is_refused() -> None:
    def plain(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    def other(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1001)

    check_remade(plain, plain, CPU)
    check_remade(plain, lambda parameters: torch.optim.SGD(parameters, lr=0.1, fused=True), CPU)
    with pytest.raises(RefusedError, match=r"moves parameters otherwise: by 1\.0e-03"):
        check_remade(plain, other, CPU)


class Scaled(torch.optim.SGD):
    """What it does depends on an attribute."""

    scale = 1.0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                weight.grad *= self.scale
        super().step(closure)


def with_attribute(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    made = Scaled(parameters, lr=0.1)
    made.scale = 0.1
    return made


def with_hook(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    def halve(optimizer: Any, *rest: Any) -> None:
        optimizer.param_groups[0]["lr"] *= 0.5

    made = torch.optim.SGD(parameters, lr=0.1)
    made.register_step_post_hook(halve)
    return made


@pytest.mark.parametrize("make", [with_attribute, with_hook])
def test_what_an_optimizer_holds_beside_its_defaults_would_be_lost_and_is_refused(make: Any) -> None:
    with pytest.raises(RefusedError, match="made again from its defaults, moves parameters otherwise"):
        check_remade(make, made_again(make), CPU)


def test_a_rate_that_is_a_tensor_is_no_difference() -> None:
    def plain(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=torch.tensor(1e-3))

    check_remade(plain, levers.optimizer_factory(case_with(optimizer_kernel="fused"), plain), CPU)
    check_remade(plain, made_again(plain), CPU)


class NormOfAll(torch.optim.SGD):
    """Its step is as long as the rate, over all parameters together."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for gradient in gradients:
            gradient /= norm
        super().step(closure)


def test_an_optimizer_that_looks_at_all_parameters_cannot_be_split_over_ranks() -> None:
    check_pieces(lambda parameters: torch.optim.AdamW(parameters, lr=0.1), CPU, "zero1", whole=True)
    with pytest.raises(RefusedError, match="zero1 gives each rank's optimizer some of the parameters"):
        check_pieces(lambda parameters: NormOfAll(parameters, lr=0.1), CPU, "zero1", whole=True)


def test_calls_of_attention_are_seen_in_the_forward_alone() -> None:
    calls = Calls("flash")
    levers.set_process(case_with(attention="flash"))
    query = torch.randn(1, 1, 2, 4)
    functional.scaled_dot_product_attention(query, query, query)
    assert calls.refusal() is not None
    with calls.watching():
        torch.ones(2).sum()
    assert "does not call" in str(calls.refusal())
    with calls.watching():
        functional.scaled_dot_product_attention(query, query, query)
    assert calls.refusal() is None


def test_attention_inside_of_torchs_own_layers_is_seen() -> None:
    levers.set_process(case_with(attention="math"))
    calls, layer = Calls("math"), nn.TransformerEncoderLayer(8, 2, batch_first=True)
    with calls.watching():
        layer(torch.randn(2, 3, 8))
    assert calls.refusal() is None
    calls, heads = Calls("math"), nn.MultiheadAttention(8, 2)
    with calls.watching():
        heads(*[torch.randn(3, 2, 8)] * 3, need_weights=True)  # multiplies by itself
    assert "does not call" in str(calls.refusal())


class Flattens(Plain):
    """Convolution, then a view of what it gave."""

    name = "flattens"

    class model(nn.Module):  # noqa: N801
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * 6 * 6, 4)

        def forward(self, x: Tensor) -> Any:
            y = self.conv(x)
            return self.head(y.view(y.size(0), -1))

    def build(self) -> nn.Module:
        return self.model()

    def example(self, index: int) -> Batch:
        return Batch(args=(torch.randn(3, 8, 8),), kwargs={}, targets=torch.randint(4, ()))


class Changes(nn.Module):
    """A block that leaves itself out every second time, whatever torch's generator says."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.called = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), 0

    def forward(self, x: Tensor) -> Any:
        self.called += 1
        return self.inner(x) if self.called % 2 else x * 1.0


class Changing(Plain):
    """Such a block, and a head."""

    name = "changing"

    def build(self) -> nn.Module:
        return nn.Sequential(Changes(), nn.Linear(8, 4))

    def blocks(self, model: Any) -> list[nn.Module]:
        return [model[0]]


@pytest.mark.parametrize(
    ("workload", "lever", "words"),
    [
        (Flattens, {"channels_last": "on"}, "the model views its activations"),
        (Changing, {"checkpoint_every": "1"}, "computes something else when it is computed again"),
    ],
)
def test_what_a_model_does_not_bear_is_refused_by_the_lever(workload: Any, lever: dict[str, str], words: str) -> None:
    case, batch = case_with(**lever), step_batch(workload)
    parts = tuple(levers.prepare_batch(case, part) for part in batch.micro_batches)
    with pytest.raises(RefusedError, match=words):
        trainer(case, workload).step(StepBatch(micro_batches=parts, weight=batch.weight))


class PastCalls(SmallViT):
    """It calls the blocks' forward, not the blocks."""

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block.forward(x)
        return self.head(x.mean(dim=1))  # type: ignore[no-any-return]


class Past(Everything):
    """That."""

    name = "past"

    def build(self) -> nn.Module:
        return PastCalls()


def test_what_compiles_nothing_is_refused() -> None:
    torch._dynamo.utils.counters.clear()
    with pytest.raises(RefusedError, match="compile=blocks compiled nothing"):
        trainer(case_with(compile="blocks"), Past).step(step_batch(Past))


def test_a_model_that_chooses_the_kernel_itself_is_refused() -> None:
    levers.set_process(case_with(attention="math"))
    calls, query = Calls("math"), torch.randn(1, 1, 2, 4)
    with calls.watching(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        functional.scaled_dot_product_attention(query, query, query)
    assert "the model chooses the kernel itself" in str(calls.refusal())


def trainer(case: Case, workload: Any, **rest: Any) -> Trainer:
    return Trainer(
        workload=workload("quick"),
        strategy=registry.get("single"),
        case=case,
        devices=(CPU,),
        mesh=None,
        seed=0,
        **rest,
    )


def step_batch(workload: Any, samples: int = 2) -> StepBatch:
    torch.manual_seed(0)
    one = workload("quick")
    return StepBatch(micro_batches=(one.collate([one.example(index) for index in range(samples)]),), weight=samples)


def test_attention_without_attention_is_refused_after_the_first_step() -> None:
    levers.set_process(case_with(attention="math"))
    with pytest.raises(RefusedError, match="does not call"):
        trainer(case_with(attention="math"), Plain).step(step_batch(Plain))
    found = trainer(case_with(attention="math"), Everything)
    for _ in range(2):
        found.step(step_batch(Everything))


def test_a_kernel_that_takes_no_such_inputs_is_refused_with_a_remedy() -> None:
    lever, case = levers.registry.get("attention"), case_with(attention="flash")
    reason = lever.refusal(case, RuntimeError("No available kernel. Aborting execution."))
    assert reason is not None and "attention=math" in reason
    assert lever.refusal(case, RuntimeError("something else")) is None


def test_a_model_that_cannot_be_compiled_is_refused() -> None:
    from torch._dynamo.exc import BackendCompilerFailed, Unsupported

    lever, case = levers.registry.get("compile"), case_with(compile="model")
    for error in (Unsupported("no such call"), BackendCompilerFailed(None, RuntimeError("x"), None)):
        assert "torch.compile cannot take this model" in str(lever.refusal(case, error))
    assert lever.refusal(case, RuntimeError("gloo")) is None


def test_fp16_scales_the_loss_and_leaves_out_a_step_that_overflows() -> None:
    found = trainer(case_with(precision="fp16"), Everything, init_scale=2.0**120)
    before = [weight.detach().clone() for weight in found.model.parameters()]
    found.step(step_batch(Everything))
    assert all(torch.equal(a, b) for a, b in zip(before, found.model.parameters(), strict=True))
    assert found._scaler is not None and found._scaler.get_scale() == 2.0**119
    found = trainer(case_with(precision="fp16"), Everything, init_scale=2.0**7)
    found.step(step_batch(Everything))
    assert any(not torch.equal(a, b) for a, b in zip(before, found.model.parameters(), strict=True))


class Unscales(Single):
    unscales_first = True


def test_a_sharded_scaler_hears_of_overflows_before_a_fused_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its `step` leaves them to the optimizer, and each rank would know of its own alone."""
    seen: list[str] = []
    real = torch.amp.GradScaler
    monkeypatch.setattr(real, "unscale_", lambda self, optimizer: seen.append("unscale"))
    monkeypatch.setattr(real, "step", lambda self, optimizer: seen.append("step"))
    monkeypatch.setattr(real, "update", lambda self: None)
    case = case_with(precision="fp16")
    for strategy in (Single(), Unscales()):
        rest: dict[str, Any] = {"devices": (CPU,), "mesh": None, "seed": 0, "optimizer": None}
        Trainer(workload=Everything("quick"), strategy=strategy, case=case, **rest).step(step_batch(Everything))
    assert seen == ["step", "unscale", "step"] and registry.get("fsdp1").unscales_first


class Writes(Everything):
    """Its model normalises images where they lie."""

    name = "writes"

    def build(self) -> nn.Module:
        model = SmallViT()
        model.stem.insert(0, nn.Dropout(0.0))
        model.stem[0].register_forward_pre_hook(lambda module, args: args[0].mul_(0.5))
        return model


def test_a_model_that_writes_to_resident_batches_is_refused() -> None:
    case = case_with(data_placement="resident")
    with pytest.raises(RefusedError, match="writes to the batch in place"):
        trainer(case, Writes).step(placed(case, [step_batch(Writes)], CPU)[0])
    trainer(case_with(), Writes).step(step_batch(Writes))


def test_resident_batches_are_not_copied_again() -> None:
    batch = step_batch(Everything)
    taken: list[Tensor] = []

    def take(module: Any, args: Any) -> None:
        taken.append(args[0][0])

    for value, same in (("host", False), ("resident", True)):
        case = case_with(data_placement=value)
        found = trainer(case, Everything)
        assert isinstance(found.wrapped, PrecisionModule)
        found.wrapped.register_forward_pre_hook(take)
        (mine,) = placed(case, [batch], CPU)
        found.step(mine)
        assert (taken[-1].data_ptr() == mine.micro_batches[0].args[0].data_ptr()) is same


def test_compiling_needs_a_compiler_and_pythons_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    assert cannot_compile("cpu") is None  # this machine has both, as the suite's own tests need them
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in str(cannot_compile("cpu"))
    monkeypatch.delenv("CXX")
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"include": str(tmp_path)})
    assert "python3-dev" in str(cannot_compile("cpu"))
