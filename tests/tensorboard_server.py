"""TensorBoard with Penstock's tab, as a program: whether or not Penstock is installed."""

import sys
import types

from tensorboard import default, main_lib, program

from penstock.interop.tensorboard import Plugin


def without_tensorflow() -> None:
    """TensorBoard's own switch: importing TensorFlow takes longer than all that is tested here."""
    sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("notf"))


def main() -> None:
    without_tensorflow()
    main_lib.global_init()
    plugins = default.get_plugins()
    if Plugin not in plugins:  # run from its sources: nothing has told TensorBoard of it
        plugins.append(Plugin)
    board = program.TensorBoard(plugins)
    board.configure(sys.argv)
    sys.exit(board.main())


if __name__ == "__main__":
    main()
