"""How long a step takes on a device nobody has here: computed from its data sheet, so a floor and not a measurement."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmlab.errors import InvalidParameter
from llmlab.planner.devices import Device, device
from llmlab.planner.model_shape import ModelShape
from llmlab.planner.roofline import Row, read_bytes, step_work
from llmlab.planner.step_load import StepLoad

PROBE = 4096  # positions of the row from which the cost of one is taken


@dataclass(frozen=True, slots=True)
class DataSheetTimes:
    """COMPUTED: the longer of arithmetic and reading, both at ``reached`` of the device's peak, plus ``overhead_s``.

    Operations and bytes are those of :func:`~llmlab.planner.roofline.step_work`, spread evenly over positions: sliding
    windows are not seen. ``reached`` is an assumption, 1 unless it is given.
    """

    shape: ModelShape
    device: Device
    weights: str = "bf16"
    kv: str = "bf16"
    reached: float = 1.0
    overhead_s: float = 0.0
    _costs: dict[str, float] = field(init=False, repr=False, compare=False)
    _weight_bytes: dict[int, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.reached <= 1:
            raise InvalidParameter(f"reached={self.reached!r} must be a share of the peak, above 0 and at most 1")
        formats = {"weights": self.weights, "kv": self.kv}
        one = step_work(self.shape, [Row(1, PROBE - 1)], **formats)
        long = step_work(self.shape, [Row(PROBE, 0)], **formats)
        costs = {
            "token": one.linear_flops,
            "row": one.head_flops,
            "few": one.attention_flops / PROBE,
            "pair": long.attention_flops / (PROBE * (PROBE + 1) / 2),
            "read": one.kv_read_bytes / PROBE,
            "peak": self.device.peak(one.arithmetic),
        }
        object.__setattr__(self, "_costs", costs)
        object.__setattr__(self, "_weight_bytes", {})

    @property
    def source(self) -> str:
        """What it was computed from."""
        parts = [f"COMPUTED from the data sheet of {self.device.name} for {self.shape.name} in {self.weights}"]
        if self.reached < 1:
            parts.append(f"{self.reached:.0%} of its peaks assumed")
        if self.overhead_s:
            parts.append(f"{1e3 * self.overhead_s:g} ms more for each step assumed")
        return ", ".join(parts)

    def ns(self, load: StepLoad) -> int:
        """Time of a step in nanoseconds."""
        cost = self._costs
        flops = cost["token"] * load.num_tokens + cost["row"] * load.num_rows
        flops += cost["pair"] * load.pairs + cost["few"] * (load.attended - load.pairs)
        moved = self._weights(load.num_tokens) + cost["read"] * load.read
        seconds = max(flops / cost["peak"], moved / self.device.bytes_per_s) / self.reached
        return int(1e9 * (seconds + self.overhead_s))

    def _weights(self, num_tokens: int) -> float:
        """Bytes of weights that so many tokens touch: of a mixture of experts, not always all."""
        found = self._weight_bytes.get(num_tokens)
        if found is None:
            found = self._weight_bytes[num_tokens] = read_bytes(self.shape, num_tokens, self.weights)
        return found


def data_sheet_times(model: str | ModelShape, on: str | Device, **options) -> DataSheetTimes:
    """Step times of a known model (or shape) on a known device; ``options`` are the fields of :class:`DataSheetTimes`.

    Raises ``InvalidParameter`` for a name that is not known.
    """
    shape = model if isinstance(model, ModelShape) else ModelShape.of(model)
    return DataSheetTimes(shape, device(on), **options)
