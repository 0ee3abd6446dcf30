"""Defines all limits of the loader, and explains the size of each.

The limits apply to every file. They keep the time and memory for a file in proportion to its size.
The largest published classifiers are far below all limits.
"""

# --- the file -------------------------------------------------------------------------------------

# Fields of messages. A field of two bytes in the file may take 500 bytes in memory, so fields are
# counted before anything is parsed. An exporter writes 20 to 100 fields per node; 100,000 more
# fields cost 0.1 s and 50 MB.
FIELD_LIMIT = 1_000_000
# Whole numbers in packed lists (shapes, pads, int64 weights). Each takes one byte in the file, but
# 8 bytes in memory and 40 bytes as a Python number. The lists of a network have a few thousand
# numbers in total.
INTEGER_LIMIT = 2**22
# Bytes of a name. Converters join names to some hundred bytes, and libraries copy names from node
# to node.
NAME_LIMIT = 1024

# --- the graph ------------------------------------------------------------------------------------

# Nodes, including inlined functions and subgraphs. The largest published CNN classifiers have a few
# thousand nodes. Measured on a 2-core machine: 10,000 nodes load in 3 to 6 s with 100 MB, and the
# time is linear in their number. The conversion of an old opset may double them, because attributes
# become constants.
NODE_LIMIT = 10_000
# Names that nodes read and write, each counted at every use, in total and for one node. A
# BatchNormalization has 6, and a Concat of DenseNet-264 has 66. Without this limit, a node with a
# million inputs would count as one node.
EDGE_LIMIT = 8 * NODE_LIMIT
PORT_LIMIT = 512
# The depth of functions that call functions, as in onnx.checker. Exporters nest a few functions.
CALL_DEPTH_LIMIT = 100
# Bytes that inlining may add to the file's bytes. A function that holds a large constant may be
# called thousands of times.
INLINED_BYTES_LIMIT = 2**26
# Graphs inside graphs (If, Loop). Exporters nest one or two, and libraries walk them recursively.
SUBGRAPH_DEPTH_LIMIT = 8
# Nodes that read the same value. DenseNet-264 has 65. Rewrite rules name all other readers of a
# value.
READER_LIMIT = 128
# Nodes in a row that only move, pool, activate or scale, and values that such nodes join or
# multiply. Rewrite rules search all of them backwards. Keras' DenseNet-264 nests 64 Concats.
MOVES_LIMIT = 128
PIECES_LIMIT = 512

# --- tensors --------------------------------------------------------------------------------------

# Axes of a tensor. The attention of Swin has tensors with 6 axes.
RANK_LIMIT = 16
# Numbers in a stored tensor, or in a value for one image: 1 GiB as float32. The largest weight of a
# published classifier, in VGG's first linear layer, has 2**26.6 numbers.
ELEMENT_LIMIT = 2**28
# Images in the batch that the model was exported for.
BATCH_LIMIT = 2**16
# Numbers in all one-dimensional integer tensors that nodes compute, in total. Data propagation
# stores every entry of each tensor, known or not. Tensors of images do not count, because they have
# a batch axis.
FLAT_LIMIT = 2**20
# Numbers that folding may compute from constants and that nodes may read from constants: so many
# per byte of the file, plus a fixed number for files that store almost nothing. A reader may copy
# its weight, so a weight with a thousand readers may be in memory a thousand times. Measured: a
# file of 1 kB takes at most 0.8 GB. onnx's own light ResNet-50 and AlexNet, in which all weights
# are ConstantOfShape, still load.
CONSTANT_FACTOR = 4
CONSTANT_FREE = 2**26
# Sides, strides, dilations and pads of a window. The largest side of an image is also 16,384.
WINDOW_LIMIT = 2**14


def shown(number: int) -> str:
    """Return a number as text. Numbers of 10^15 or more are shown as bounds, such as "over
    2**64"."""
    if abs(number) < 10**15:
        return f"{number:,}"
    power = number.bit_length() - 1
    return f"over 2**{power}" if number > 0 else f"under -2**{power}"


def shortened(text: str, limit: int = 300) -> str:
    """Return the text on one line, cut to `limit` characters. Unprintable characters become "?"."""
    line = " ".join(text[: 2 * limit].split())
    line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= limit else f"{line[:limit]}..."
