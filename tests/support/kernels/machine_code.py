"""Made-up machine code."""

from kernels.device.machine_code import Instruction


def listed(*lines: str) -> list[Instruction]:
    """Instructions from lines as "@P0 BRA 3": a predicate if any, an opcode, a target if any."""
    code = []
    for line in lines:
        words = line.split()
        predicate = words.pop(0) if words[0].startswith("@") else ""
        target = int(words[1]) if len(words) > 1 else None
        code.append(Instruction(words[0], "", predicate, target, 1, waits=False))
    return code
