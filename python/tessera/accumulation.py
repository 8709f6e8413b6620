"""Which backward passes make an optimizer step: micro batches that an engine counts, boundaries that its program sets, blocks."""

import contextlib
import logging

logger = logging.getLogger("tessera")
_FORWARDS_BEFORE_A_WORD = 16


class Accumulation:
    """What an Engine (`core`, `stage`, _values, _world) says and is told of its boundaries."""

    _no_sync = False  # inside a block
    _told_of_no_sync = False
    _told_of_kept_gradients = False
    _ends_block = False  # the next step ends a coalesce_grad_reduction()
    _sets_boundaries = False  # set_gradient_accumulation_boundary() was called
    _forwards_without_step = 0  # since gradients wait for one

    @property
    def _counts_micro_batches(self):
        return self._values.get("managed_gradient_accumulation") is not False

    def is_gradient_accumulation_boundary(self):
        """With managed_gradient_accumulation false: whether step() is running."""
        return self.core.is_boundary()

    def steps_now(self):
        """Whether step() would be an optimizer step."""
        return not self._counts_micro_batches or self.core.is_boundary()

    def _notice_missing_step(self):
        """Before a forward: says once that gradients come, and that nobody uses them."""
        pending = self.core.gradients_pending
        if not pending:
            self._forwards_without_step = 0
        if not pending or self._no_sync or self._sets_boundaries or not self._counts_micro_batches:
            return
        self._forwards_without_step += 1
        if self._forwards_without_step == max(_FORWARDS_BEFORE_A_WORD, 4 * self.gradient_accumulation_steps()) and self._world.rank == 0:
            logger.warning("%d forwards have begun since the first gradients came, and step() was not called: nothing is trained so far. Call "
                           "engine.step() after each backward; with Accelerate accelerator.backward(loss) does, in place of loss.backward()",
                           self._forwards_without_step)

    def set_gradient_accumulation_boundary(self, is_boundary):
        """Not inside no_sync() and coalesce_grad_reduction(), which decide it."""
        self._require_counting("set_gradient_accumulation_boundary()")
        self._sets_boundaries = True
        if not self._no_sync:
            self.core.set_boundary(is_boundary)

    def _require_counting(self, what):
        if not self._counts_micro_batches:
            raise AssertionError(f"{what} is not supported with managed_gradient_accumulation=False, where every step() is the boundary: "
                                 "leave it out, or set the key to true")

    def _count_again(self):
        """No block and no call says any more where the boundary is."""
        self.core.set_boundary(None if self._counts_micro_batches else False)

    def zero_grad(self, set_to_none=True):
        """Drops the gradients that wait for a step. Those of an accumulation that is under way stay at stages 2 and 3, as in DeepSpeed, where
        programs may call this in each micro batch."""
        self.drop_gradients(also_under_way=self.stage <= 1)

    def drop_gradients(self, also_under_way):
        waits = self.core.gradients_pending
        if also_under_way or not self._counts_micro_batches or (waits and self.core.is_boundary()):
            self.core.zero_grad()
        elif not self._told_of_kept_gradients and (waits or self.micro_steps % self.gradient_accumulation_steps()):
            self._told_of_kept_gradients = True
            if self._world.rank == 0:
                logger.warning("zero_grad() in the middle of an accumulation, at ZeRO stage %d: its gradients stay, as in DeepSpeed", self.stage)

    @contextlib.contextmanager
    def no_sync(self):
        """Gradients of the backward passes inside accumulate without being reduced. At stages 2 and 3 no rank keeps a whole gradient:
        each backward reduces its own there, and the sums accumulate."""
        if self.stage >= 2 and not self._told_of_no_sync:
            self._told_of_no_sync = True
            if self._world.rank == 0:
                logger.warning("no_sync() at ZeRO stage %d: gradients accumulate as it says, but are reduced in each backward all the same, "
                               "because no rank keeps a whole gradient", self.stage)
        with self._held_back(boundary=False):
            yield
        self._count_again()

    @contextlib.contextmanager
    def coalesce_grad_reduction(self):
        """The backward passes inside belong to one step, which follows the block; their gradients accumulate. Stages 1 to 3. Stage 1
        reduces them once; stages 2 and 3 in each backward, as without the block, so that no rank keeps a whole gradient."""
        self._require_counting("coalesce_grad_reduction()")
        if self.stage == 0:
            raise NotImplementedError("coalesce_grad_reduction is for ZeRO stages 1 to 3, but this engine's stage is 0: use no_sync()")
        with self._held_back(boundary=self.stage >= 2):
            yield
        self.core.set_boundary(True)
        self.core.reduce_accumulated()
        self._ends_block = True

    @contextlib.contextmanager
    def _held_back(self, boundary):
        """step() is not allowed inside."""
        if self._no_sync:
            raise AssertionError("no_sync and coalesce_grad_reduction cannot be nested (no_sync context manager reentry is "
                                 "unsupported): one is already open")
        self._no_sync = True
        self.core.set_boundary(boundary)
        try:
            yield
        except BaseException:
            self._count_again()
            raise
        finally:
            self._no_sync = False
