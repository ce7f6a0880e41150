"""One pass of the network over some rows: outputs and Jacobian blocks, in pieces after running out of memory."""

from torch import nn

from ... import device as devices
from ...core.jacobian.capture import Capture, Captured, joined_passes
from ...core.network.forward import map_inputs
from ...files.data.datasets import Split
from ...reporter import Reporter
from .input_reader import InputReader


class Passes:
    """Reads rows and differentiates the network at them."""

    def __init__(self, model: nn.Module, reader: InputReader, capture: Capture, reporter: Reporter) -> None:
        self.model, self.reader, self.capture, self.reporter = model, reader, capture, reporter
        self.most_rows = 2**62  # per pass; halved whenever memory runs out

    @property
    def n_outputs(self) -> int:
        return self.capture.n_outputs

    def rows_per_pass(self, split: Split) -> int:
        return self.capture.rows_of_pass(len(split))

    def __call__(self, split: Split, start: int, stop: int) -> Captured:
        """Outputs and blocks of rows [start, stop)."""
        inputs, n_rows = self.reader(split, start, stop), stop - start
        while True:
            rows = min(self.most_rows, n_rows)
            try:
                if rows == n_rows:
                    return self.capture(inputs)
                cuts = [slice(a, a + rows) for a in range(0, n_rows, rows)]
                return joined_passes([self.capture(map_inputs(lambda t, cut=cut: t[cut], inputs)) for cut in cuts])  # type: ignore[misc]
            except devices.OUT_OF_MEMORY:
                if rows == 1:
                    raise
            # Not inside the handler: the exception keeps the tensors of the failed pass alive.
            devices.release(self.reader.device)
            self.most_rows = rows // 2
            self.reporter.note(
                f"out of memory on {self.reader.device}: continuing with passes of {rows // 2} rows instead of {rows}"
            )
