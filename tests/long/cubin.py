"""Reads machine code for GPUs (sm_80 to sm_90) from the objects that nvcc writes, without NVIDIA's tools.

kernels_of(object) gives each kernel with its registers, its stack and its instructions that a check asks for;
literals_of(object) the text in memory of the device. NVIDIA documents neither the files nor the instructions: the
numbers are LLVM's and what nvdisasm prints, and tests/cuda/planted_machine_code.cu has a kernel for each of them."""
import collections
import re
import struct
import subprocess
import sys

FATBIN, CUBIN = 0xba55ed50, 2
NOBITS, OBJECT, FUNCTION = 8, 1, 2
SIZED, FRAME, REGISTERS = 4, 0x11, 0x2f  # forms and attributes of .nv.info
ENTRY = 0x10  # of st_other: a kernel, not a function that one calls
# Mask and value in the 128 bits of an instruction. The low 12 bits are the opcode; the others are, by line: which
# product; the bytes of a load; the function; compare and swap that repeats until it succeeds; which of two.
SIZE, WIDE = 7 << 73, 6 << 73
SPIN, DEPBAR = 3 << 87, 1 << 80
INSTRUCTIONS = {
    "HMMA": (0xfff, 0x23c), "LDSM": (0xfff, 0x83b), "UTMALDG": (0xfff, 0x5b4), "HGMMA": (0x1ff, 0x1f0),
    "LDG.128": (0xfff | SIZE, 0x981 | WIDE), "LDGSTS.128": (0xfff | SIZE, 0xfae | WIDE),
    "LDG": (0xfff, 0x981), "LDGSTS": (0xfff, 0xfae),
    "MUFU.EX2": (0xfff | 63 << 74, 0x308 | 2 << 74),
    "ATOMS.SPIN": (0xfff | SPIN, 0x38d | SPIN),
    "WARPGROUP.DEPBAR": (0xfff | DEPBAR, 0x9c5 | DEPBAR),
    "LDL": (0xfff, 0x983), "STL": (0xfff, 0x387),
    "BRA": (0xfff, 0x947), "USETMAXREG": (0xfff, 0x9c8),
}
BRANCH = 0x947  # its offset counts 4 bytes from the next instruction: 8 bits from bit 16, the others from bit 34
SWAPS = (0x38d, 0x3a9)  # compare and swap in shared and in global memory
IN_REGISTERS = 1 << 10  # the first operand of HGMMA
SPIN_LENGTH = 32  # a longer loop does work between its compare and swaps
BY_OPCODE = {opcode: [(name, mask, bits) for name, (mask, bits) in INSTRUCTIONS.items()
                      if opcode & mask & 0xfff == bits & 0xfff] for opcode in range(1 << 12)}
NEWER = 72  # first of the bits of WARPGROUP.DEPBAR that say how many products may still run

# One instantiation: `name` demangled, without its namespaces and parameters; `instructions` in the order of the
# code, those of INSTRUCTIONS; WARPGROUP.DEPBAR with its number, as in "WARPGROUP.DEPBAR 1"; and "CAS.LOOP" for a
# short branch back over a compare and swap. `operand_bytes` are the bytes of shared memory that its HGMMA read, for
# each 64 x 64 x 16 of them.
Kernel = collections.namedtuple("Kernel", "name registers stack instructions operand_bytes")


def demangled(names):
    """The names without return type, namespaces and parameters."""
    answer = subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True, check=True)
    for name in answer.stdout.splitlines():
        plain = re.sub(r"\b(\w+::)+", "", name.replace("(anonymous namespace)::", "")).removeprefix("void ")
        depth = 0
        for at, letter in enumerate(plain):
            depth += {"<": 1, ">": -1}.get(letter, 0)
            if letter == "(" and depth == 0:
                plain = plain[:at]
                break
        yield plain


def sections(data):
    """(name, header, bytes) of each section of an ELF file."""
    table, = struct.unpack_from("<Q", data, 40)
    count, names = struct.unpack_from("<HH", data, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * i) for i in range(count)]
    for header in headers:
        start = headers[names][4] + header[0]
        name = data[start:data.index(b"\0", start)].decode()
        yield name, header, b"" if header[1] == NOBITS else data[header[4]:header[4] + header[5]]


def cubins(path):
    """The ELF files for GPUs in an object of nvcc's."""
    for name, _, data in sections(path.read_bytes()):
        at = 0
        while name == ".nv_fatbin" and at < len(data):
            magic, _, head, size = struct.unpack_from("<IHHQ", data, at)
            if magic != FATBIN:
                sys.exit(f"cuda-static: {path}: expected a fat binary in .nv_fatbin, got {magic:#x}")
            entry, end = at + head, at + head + size
            while entry < end:
                kind, _, head, size = struct.unpack_from("<HHIQ", data, entry)
                code = data[entry + head:entry + head + size]
                if kind == CUBIN:
                    if not code.startswith(b"\x7fELF"):
                        sys.exit(f"cuda-static: {path}: its machine code is compressed; expected an ELF "
                                 "file, as nvcc 13 writes; read that with cuobjdump")
                    yield code
                entry += head + size
            at = (end + 7) // 8 * 8


def symbols_of(parts):
    """(name, type, st_other, section number, offset, size) of each symbol."""
    strings = parts[".strtab"][1]
    for name, info, other, section, offset, size in struct.iter_unpack("<IBBHQQ", parts[".symtab"][1]):
        yield strings[name:strings.index(b"\0", name)].decode(), info & 15, other, section, offset, size


def attributes(data, wanted):
    """Values of the attributes of .nv.info, by symbol."""
    at, values = 0, collections.defaultdict(dict)
    while at < len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        if form == SIZED:
            if attribute in wanted:
                symbol, value = struct.unpack_from("<II", data, at + 4)
                values[attribute][symbol] = value
            at += size
        at += 4
    return values


def instructions_of(code):
    swaps = []
    for at, (low, high) in enumerate(struct.iter_unpack("<QQ", code)):
        if low & 0xfff in SWAPS:
            swaps.append(at)
        if low & 0xfff == BRANCH:
            more = (low | high << 64) >> 34 & (1 << 48) - 1
            offset = (more - (more >> 47 << 48) << 8) + (low >> 16 & 0xff)
            first = at + 1 + offset // 4
            if at - first < SPIN_LENGTH and any(first <= swap for swap in swaps):
                yield "CAS.LOOP"
        for name, mask, bits in BY_OPCODE[low & 0xfff]:
            word = low | high << 64
            if word & mask == bits:
                yield f"{name} {word >> NEWER & 7}" if name == "WARPGROUP.DEPBAR" else name
                break


def operand_bytes_of(code):
    """HGMMA read 16 rows of n columns of two bytes, and 64 rows of the other operand if this bit says so."""
    columns = total = 0
    for low, _ in struct.iter_unpack("<QQ", code):
        if low & 0x1ff == 0x1f0:
            n = 8 * ((low >> 53 & 31) + 1)
            columns += n
            total += 32 * n + (0 if low & IN_REGISTERS else 2048)
    return 64 * total // columns if columns else 0


def kernels_of(path):
    """The kernels of an object. The code of functions that a kernel calls counts as the kernel's."""
    for cubin in cubins(path):
        parts = {name: (header, data) for name, header, data in sections(cubin)}
        values = attributes(parts[".nv.info"][1], (REGISTERS, FRAME))
        symbols = list(symbols_of(parts))
        called = [instruction for name, kind, other, *_ in symbols
                  if f".text.{name}" in parts and kind == FUNCTION and not other & ENTRY
                  for instruction in instructions_of(parts[f".text.{name}"][1])]
        entries = [(number, name) for number, (name, kind, other, *_) in enumerate(symbols)
                   if f".text.{name}" in parts and kind == FUNCTION and other & ENTRY]
        for (number, symbol), name in zip(entries, demangled([symbol for _, symbol in entries])):
            code = parts[f".text.{symbol}"][1]
            yield Kernel(name, values[REGISTERS][number], values[FRAME][number],
                         list(instructions_of(code)) + called, operand_bytes_of(code))


def literals_of(path):
    """String literals in memory of the device: variables of text that end in a zero byte."""
    found = set()
    for cubin in cubins(path):
        parts = list(sections(cubin))
        for name, kind, _, section, offset, size in symbols_of({name: rest for name, *rest in parts}):
            if kind != OBJECT or not 0 < section < len(parts):
                continue
            text = parts[section][2][offset:offset + size]
            if text and text.endswith(b"\0") and (name.startswith("$str") or re.fullmatch(rb"[ -~\s]+\0", text)):
                found.add(text[:-1].decode(errors="replace"))
    return found
