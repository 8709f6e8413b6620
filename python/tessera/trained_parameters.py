"""Whether a model still has the parameters that its engine trains. A program that replaces one after initialize, adds one
or unfreezes one would train on with a parameter that nobody updates, so it is told.

Parameters that need no gradient may come and go.
"""

import operator
import weakref

from tessera import _core, zero
from tessera.error_report import made


class TrainedParameters:
    """Of an engine that has just taken the model."""

    def __init__(self, model, engine):
        self._engine = weakref.ref(engine)
        self._frozen = {id(parameter) for parameter in model.parameters() if not parameter.requires_grad}
        self._checked = []  # parameters of the last check, in the model's order

    def check(self, model):
        """UsageError if a parameter needs a gradient that the engine does not train. Calls nothing for a parameter that was so in the last
        check, which leaves each step of a model of thousands this comparison alone."""
        wanted = [parameter for module in model.modules()
                  for parameter in module._parameters.values()  # not parameters(): that gathers, and names take longer
                  if parameter is not None and parameter.requires_grad]
        if len(wanted) == len(self._checked) and all(map(operator.is_, wanted, self._checked)):
            return
        engine = self._engine()
        for parameter in wanted:
            if zero.engine_of(parameter)[0] is not engine:
                if parameter.numel() or zero.is_partitioned(parameter):
                    raise _not_trained(model, parameter, "was put into the model after initialize",
                                       "change the model before initialize, or call initialize again, with an "
                                       "optimizer of the changed model's parameters")
            elif id(parameter) in self._frozen:
                raise _not_trained(model, parameter, "was frozen at initialize and requires a gradient now",
                                   "set requires_grad before initialize, or freeze it again")
        self._checked = wanted


def _not_trained(model, wanted, what, fix):
    paths = (f"{path}.{name}" if path else name for path, module in model.named_modules()
             for name, parameter in module._parameters.items() if parameter is wanted)
    return made(_core.UsageError, f"the parameter '{next(paths)}' {what}: the engine does not train it",
                type(model).__name__, fix)
