"""SIGTERM: a training run ends whole, saved, and with exit code 0."""

import signal
import types

from twinstats.errors import Stopped


class Sigterm:
    """Whether this process was told to end, for as long as the context lasts.

    At first the signal ends what is done at once: `Stopped` is raised wherever the process is.
    Once it is `held`, it is only noted in `came`, so that a step can be finished and saved. Enter
    it in the main thread; one that was not entered never comes.
    """

    def __init__(self) -> None:
        self.came = self._is_held = False

    def __enter__(self) -> "Sigterm":
        self._before = signal.signal(signal.SIGTERM, self._take)
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGTERM, self._before)

    def hold(self) -> None:
        """From now on the signal is only noted.

        Raises:
            Stopped: It has come before, and what it raised was lost in somebody else's code.
        """
        self._is_held = True
        if self.came:
            self._stop()

    def _take(self, number: int, frame: types.FrameType | None) -> None:
        self.came = True
        if not self._is_held:
            self._stop()

    def _stop(self) -> None:
        raise Stopped("stopped by SIGTERM before a step was taken: there is nothing to save.")
