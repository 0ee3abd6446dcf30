"""Creates artificial machine code for tests."""

from kernels.device.machine_code import Instruction


def listed(*lines: str) -> list[Instruction]:
    """Parse lines such as "@P0 BRA 3", and return their instructions. A line has an optional
    predicate, the opcode, and an optional target or operands."""
    code = []
    for line in lines:
        words = line.split()
        predicate = words.pop(0) if words[0].startswith("@") else ""
        after = words[1] if len(words) > 1 else ""
        target, operands = (int(after), "") if after.isdecimal() else (None, after)
        code.append(Instruction(words[0], operands, predicate, target, 1, waits=False))
    return code
