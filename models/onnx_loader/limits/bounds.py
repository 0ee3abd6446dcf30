"""Lists all limits of the loader, with the reason for the size of each.

The limits apply to every file, so that a file costs time and memory in proportion to its size. The
largest published classifiers are far below all limits.
"""

# --- the file -------------------------------------------------------------------------------------

# A field of a message: two bytes in the file may be 500 in memory, so they are counted before
# anything is parsed. An exporter writes 20 to 100 a node; 100,000 more cost 0.1 s and 50 MB.
FIELD_LIMIT = 1_000_000
# Whole numbers in packed lists (shapes, pads, int64 weights): a byte in the file, but 8 in memory
# and 40 as Python's numbers. The lists of a network are a few thousand numbers together.
INTEGER_LIMIT = 2**22
# Bytes of a name. Converters join names to some hundred; libraries copy names from node to node.
NAME_LIMIT = 1024

# --- the graph ------------------------------------------------------------------------------------

# Nodes, functions inlined and subgraphs included. The largest published CNN classifiers have some
# thousand. Measured on a 2-core machine: 10,000 load in 3 to 6 s with 100 MB, and time is linear in
# their number. Conversion from an old opset may double them: attributes become constants.
NODE_LIMIT = 10_000
# Names that nodes read and write, counted each time, and those of one node: a BatchNormalization
# has 6, a Concat of DenseNet-264 66. A node with a million inputs would otherwise be one node.
EDGE_LIMIT = 8 * NODE_LIMIT
PORT_LIMIT = 512
# Of functions that call functions, as in onnx.checker. Exporters nest a few.
CALL_DEPTH_LIMIT = 100
# Bytes that inlining may write beside the file's own: a function that holds a large constant may be
# called thousands of times.
INLINED_BYTES_LIMIT = 2**26
# Graphs inside graphs (If, Loop). Exporters nest one or two; libraries walk them by recursion.
SUBGRAPH_DEPTH_LIMIT = 8
# Nodes that read one value. DenseNet-264 has 65; rewrite rules name every other reader of a value.
READER_LIMIT = 128
# Nodes in a row that only move, pool, activate or scale, and values that they join or multiply into
# one. Rewrite rules look back through all of them. Keras' DenseNet-264 nests 64 Concats.
MOVES_LIMIT = 128
PIECES_LIMIT = 512

# --- tensors --------------------------------------------------------------------------------------

# Axes; the attention of Swin reshapes to 6.
RANK_LIMIT = 16
# Numbers in a stored tensor, or in a value for one image: 1 GiB as float32. The largest weight of a
# published classifier, of VGG's first linear layer, has 2**26.6.
ELEMENT_LIMIT = 2**28
# Images in the batch that the model was exported for.
BATCH_LIMIT = 2**16
# Numbers in all flat whole-number tensors that nodes make, together. Data propagation writes out
# every entry of each, known or not. Tensors of images are not flat: they have a batch axis.
FLAT_LIMIT = 2**20
# Numbers that folding may compute of constants, and that nodes may read of them: so many for each
# byte of the file, and a constant for files that store next to nothing. A reader may copy its
# weight: one that a thousand nodes share may be in memory a thousand times. Measured:
# a file of 1 kB takes 0.8 GB at most. onnx's own light ResNet-50 and AlexNet, all of whose weights
# are ConstantOfShape, still load.
CONSTANT_FACTOR = 4
CONSTANT_FREE = 2**26
# Sides, strides, dilations and pads of a window; the largest side of an image is 16,384 too.
WINDOW_LIMIT = 2**14


def shown(number: int) -> str:
    """Return a number as text, as a power of two if it has too many digits."""
    if abs(number) < 10**15:
        return f"{number:,}"
    power = number.bit_length() - 1
    return f"over 2**{power}" if number > 0 else f"under -2**{power}"


def shortened(text: str, limit: int = 300) -> str:
    """Return the text on one line, cut to `limit` characters. Unprintable characters become "?"."""
    line = " ".join(text[: 2 * limit].split())
    line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= limit else f"{line[:limit]}..."
