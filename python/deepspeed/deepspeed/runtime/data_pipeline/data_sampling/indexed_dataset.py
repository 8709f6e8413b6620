"""Many arrays of numbers in two files, as Megatron and DeepSpeed keep texts and metrics: PREFIX.bin has the numbers, one array after
another, and PREFIX.idx says how long each is.

    builder = MMapIndexedDatasetBuilder("PREFIX.bin", dtype=numpy.uint16)
    builder.add_item(torch.tensor([5, 7, 9]))
    builder.finalize("PREFIX.idx")
    MMapIndexedDataset("PREFIX")[0]                      array([5, 7, 9]), read where it lies

The index of the kind "mmap", all little-endian:

    9 bytes "MMIDIDX\\0\\0" | u64 version 1 | u8 dtype | u64 items | u64 documents | i32 lengths | i64 byte offsets | i64 first items of documents

and of the older kinds "lazy" and "cached", which read by seeking, and keep arrays of any shape:

    8 bytes "TNTIDX\\0\\0" | u64 version 1 | u64 dtype | u64 bytes of an element | u64 items | u64 lengths | u64 documents |
    i64 where the lengths of each item begin | i64 element offsets | i64 lengths | i64 first items of documents
"""

import operator
import os
import shutil
import struct

import numpy as np
import torch

# By the code in an index: NumPy's and torch's.
dtypes = {1: (np.uint8, torch.uint8), 2: (np.int8, torch.int8), 3: (np.int16, torch.int16), 4: (np.int32, torch.int32),
          5: (np.int64, torch.int64), 6: (np.uint16, None), 7: (np.uint32, None), 8: (np.uint64, None)}
valid_dtypes = {dtype for pair in dtypes.values() for dtype in pair if dtype is not None}

_VERSION = 1


def code(dtype):
    for number, pair in dtypes.items():
        if dtype in pair:
            return number
    raise ValueError(f"an indexed dataset cannot hold {dtype}; use one of {', '.join(np.dtype(each).name for each, _ in dtypes.values())}")


def find_fit_int_dtype(min_value, max_value):
    """The smallest that holds both; unsigned where nothing is below 0."""
    kinds = (np.uint8, np.uint16, np.uint32, np.uint64) if min_value >= 0 else (np.int8, np.int16, np.int32, np.int64)
    return next((kind for kind in kinds if np.iinfo(kind).min <= min_value and max_value <= np.iinfo(kind).max), kinds[-1])


def index_file_path(prefix_path):
    return prefix_path + ".idx"


def data_file_path(prefix_path):
    return prefix_path + ".bin"


def read_longs(f, n):
    numbers = np.empty(n, dtype=np.int64)
    f.readinto(numbers)
    return numbers


def write_longs(f, a):
    f.write(np.array(a, dtype=np.int64))


def exscan_from_cumsum_(arr):
    """Running sums, in place: of all before each instead of up to it."""
    arr[1:] = arr[:-1].copy()
    arr[:1] = 0


def get_pointers_with_total(sizes, elemsize, dtype):
    """(where each item begins, where the last one ends), in bytes."""
    ends = np.cumsum(np.array(sizes, dtype=dtype) * elemsize, dtype=dtype)
    total = ends[-1] if len(ends) else 0
    exscan_from_cumsum_(ends)
    return ends, total


def create_doc_idx(sizes):
    """A document ends with each empty item."""
    return [0] + [number + 1 for number, size in enumerate(sizes) if size == 0]


# By the name of a kind

def get_available_dataset_impl():
    return ["lazy", "cached", "mmap"]


def infer_dataset_impl(path):
    if not IndexedDataset.exists(path):
        print(f"{path} is no indexed dataset: there is no {path}.idx and {path}.bin")
        return None
    with open(index_file_path(path), "rb") as file:
        magic = file.read(8)
    return {IndexedDataset._HDR_MAGIC: "cached", MMapIndexedDataset.Index._HDR_MAGIC[:8]: "mmap"}.get(magic)


def make_builder(out_file, impl, vocab_size=None):
    """`out_file`: the .bin. Of the kind "mmap", tokens of a vocabulary below 65500 take 16 bits."""
    if impl == "mmap":
        return MMapIndexedDatasetBuilder(out_file, dtype=np.uint16 if vocab_size is not None and vocab_size < 65500 else np.int32)
    return IndexedDatasetBuilder(out_file)


def make_dataset(path, impl, skip_warmup=False):
    """None where there is none. `impl`: a kind, or "infer"."""
    found = infer_dataset_impl(path)
    if found is None:
        return None
    kinds = {"lazy": IndexedDataset, "cached": IndexedCachedDataset}
    impl = found if impl == "infer" else impl
    if impl == "mmap":
        return MMapIndexedDataset(path, skip_warmup)
    if impl in kinds:
        return kinds[impl](path)
    print(f"there is no kind {impl!r} of indexed datasets; use {', '.join(get_available_dataset_impl())}")
    return None


def dataset_exists(path, impl):
    return IndexedDataset.exists(path)


def _read_head(file, magic, path, where_to_look):
    found, version = file.read(len(magic)), file.read(8)
    assert found == magic, f"{path} is not an index of this kind: it begins with {found!r}; {where_to_look}"
    assert struct.unpack("<Q", version) == (_VERSION,), f"{path} is an index of another version; only {_VERSION} is known"


def _exists(path):
    return os.path.exists(index_file_path(path)) and os.path.exists(data_file_path(path))


def _contiguous(index, count):
    start, stop, step = index.indices(count)
    if step != 1:
        raise ValueError("only items next to each other can be read as a slice: leave the step out")
    return start, max(start, stop)


def _split(numbers, sizes):
    return np.split(numbers, np.cumsum(sizes)[:-1])


# By seeking

class IndexedDataset(torch.utils.data.Dataset):
    """The kind "lazy": an item is read when it is asked for."""

    _HDR_MAGIC = b"TNTIDX\x00\x00"
    supports_prefetch = False
    exists = staticmethod(_exists)

    def __init__(self, path):
        super().__init__()
        self.path, self.data_file = path, None
        self.read_index(path)

    def read_index(self, path):
        with open(index_file_path(path), "rb") as file:
            _read_head(file, self._HDR_MAGIC, index_file_path(path), "make_dataset(path, 'infer') finds the kind")
            number, self.element_size, self._len, self.s, self.doc_count = struct.unpack("<5Q", file.read(40))
            self.dtype = dtypes[number][0]
            self.dim_offsets, self.data_offsets = read_longs(file, self._len + 1), read_longs(file, self._len + 1)
            self.sizes, self.doc_idx = read_longs(file, self.s), read_longs(file, self.doc_count)

    def read_data(self, path):
        self.data_file = open(data_file_path(path), "rb", buffering=0)

    def check_index(self, i):
        if not 0 <= i < self._len:
            raise IndexError(f"item {i} of {self._len}")

    def __del__(self):
        if getattr(self, "data_file", None):
            self.data_file.close()

    def __getstate__(self):
        return {**self.__dict__, "data_file": None}

    def _read(self, first, last):
        """Of the items from `first` to before `last`, flat."""
        if not self.data_file:
            self.read_data(self.path)
        begin, end = self.data_offsets[first], self.data_offsets[last]
        numbers = np.empty(end - begin, dtype=self.dtype)
        self.data_file.seek(begin * self.element_size)
        self.data_file.readinto(numbers)
        return numbers

    def _shape(self, i):
        return self.sizes[self.dim_offsets[i]:self.dim_offsets[i + 1]]

    def __getitem__(self, idx):
        if isinstance(idx, slice):
            first, last = _contiguous(idx, len(self))
            return _split(self._read(first, last), np.diff(self.data_offsets[first:last + 1]))
        i = operator.index(idx)
        self.check_index(i)
        return self._read(i, i + 1).reshape(self._shape(i))

    def __len__(self):
        return self._len

    def num_tokens(self, index):
        return self.sizes[index]

    size = num_tokens


class IndexedCachedDataset(IndexedDataset):
    """The kind "cached": prefetch() reads the items that will be asked for in one go."""

    supports_prefetch = True

    def __init__(self, path):
        super().__init__(path)
        self.cache, self.cache_index = None, {}

    def prefetch(self, indices):
        if all(i in self.cache_index for i in indices):
            return
        wanted = sorted(set(indices))
        parts = [self._read(i, i + 1) for i in wanted]
        self.cache = np.concatenate(parts) if parts else np.empty(0, dtype=self.dtype)
        self.cache_index = dict(zip(wanted, np.cumsum([0] + [part.size for part in parts])))
        self.data_file.close()  # so that it can be pickled
        self.data_file = None

    def __getitem__(self, idx):
        if isinstance(idx, slice):
            return [self[i] for i in range(*idx.indices(len(self)))]
        i = operator.index(idx)
        self.check_index(i)
        if i not in self.cache_index:
            return super().__getitem__(i)
        begin = self.cache_index[i]
        return self.cache[begin:begin + self.data_offsets[i + 1] - self.data_offsets[i]].reshape(self._shape(i)).copy()


class IndexedDatasetBuilder:
    """Writes what IndexedDataset reads."""

    def __init__(self, out_file, dtype=np.int32):
        self.out_file, self.dtype = open(out_file, "wb"), dtype
        self.element_size = np.dtype(dtype).itemsize
        self.data_offsets, self.dim_offsets, self.sizes, self.doc_idx = [0], [0], [], [0]

    def add_item(self, tensor):
        numbers = np.array(tensor.numpy(), dtype=self.dtype)
        self.out_file.write(numbers)
        self.data_offsets.append(self.data_offsets[-1] + numbers.size)
        self.sizes.extend(numbers.shape)
        self.dim_offsets.append(self.dim_offsets[-1] + numbers.ndim)

    def end_document(self):
        self.doc_idx.append(len(self.sizes))

    def merge_file_(self, another_file):
        """All of another one, after what is there."""
        index = IndexedDataset(another_file)
        assert index.dtype == self.dtype, f"{another_file} has {np.dtype(index.dtype)}, and this one {np.dtype(self.dtype)}"
        for own, others in ((self.data_offsets, index.data_offsets), (self.dim_offsets, index.dim_offsets)):
            own.extend(own[-1] + others[1:])
        self.doc_idx.extend(len(self.sizes) + index.doc_idx[1:])
        self.sizes.extend(index.sizes)
        with open(data_file_path(another_file), "rb") as file:
            shutil.copyfileobj(file, self.out_file)

    def finalize(self, index_file):
        self.out_file.close()
        with open(index_file, "wb") as index:
            index.write(IndexedDataset._HDR_MAGIC)
            index.write(struct.pack("<6Q", _VERSION, code(self.dtype), self.element_size, len(self.data_offsets) - 1,
                                    len(self.sizes), len(self.doc_idx)))
            for numbers in (self.dim_offsets, self.data_offsets, self.sizes, self.doc_idx):
                write_longs(index, numbers)


# By mapping the file into memory

def _mapped(path):
    """The bytes; a file without any cannot be mapped."""
    return np.memmap(path, mode="r", dtype=np.uint8) if os.path.getsize(path) else np.empty(0, dtype=np.uint8)


def _read_ahead(path):
    with open(path, "rb") as file:
        while file.read(100 << 20):
            pass


class MMapIndexedDataset(torch.utils.data.Dataset):
    """An item, or several next to each other, as arrays that show the file. Its pickle is the path. skip_warmup False: the files are
    read once, so that the system has them in memory where there is room."""

    supports_prefetch = False
    exists = staticmethod(_exists)

    class Index:
        _HDR_MAGIC = b"MMIDIDX\x00\x00"

        @classmethod
        def writer(cls, path, dtype):
            """A context with write(sizes, doc_idx)."""
            return _IndexWriter(path, dtype, cls._HDR_MAGIC)

        def __init__(self, path, skip_warmup=False):
            with open(path, "rb") as file:
                _read_head(file, self._HDR_MAGIC, path, "make_dataset(path, 'infer') finds the kind")
                number, self._len, self._doc_count = struct.unpack("<BQQ", file.read(17))
                place = file.tell()
            self._dtype = dtypes[number][0]
            self._dtype_size = np.dtype(self._dtype).itemsize
            if not skip_warmup:
                _read_ahead(path)
            bytes_of_file = _mapped(path)

            def take(kind, count):
                nonlocal place
                begin, place = place, place + count * np.dtype(kind).itemsize
                return bytes_of_file[begin:place].view(kind)

            self._sizes, self._pointers, self._doc_idx = take(np.int32, self._len), take(np.int64, self._len), take(np.int64, self._doc_count)

        @property
        def dtype(self):
            return self._dtype

        @property
        def sizes(self):
            return self._sizes

        @property
        def doc_idx(self):
            return self._doc_idx

        def __getitem__(self, i):
            return self._pointers[i], self._sizes[i]

        def __len__(self):
            return self._len

    def __init__(self, path, skip_warmup=False):
        super().__init__()
        self._open(path, skip_warmup)

    def _open(self, path, skip_warmup):
        self._path = path
        self._index = self.Index(index_file_path(path), skip_warmup)
        if not skip_warmup:
            _read_ahead(data_file_path(path))
        self._bytes = _mapped(data_file_path(path))

    def __getstate__(self):
        return self._path

    def __setstate__(self, path):
        self._open(path, skip_warmup=True)

    def __len__(self):
        return len(self._index)

    def _view(self, begin, count):
        """`begin`: a byte; `count`: elements."""
        return self._bytes[begin:begin + count * self._index._dtype_size].view(self.dtype)

    def __getitem__(self, idx):
        if isinstance(idx, slice):
            first, last = _contiguous(idx, len(self))
            sizes = self.sizes[first:last]
            begin = self._index._pointers[first] if first < last else 0
            return _split(self._view(begin, int(sizes.sum(dtype=np.int64))), sizes)
        return self.get(operator.index(idx))

    def get(self, idx, offset=0, length=None):
        """A part of one item."""
        begin, size = self._index[idx]
        return self._view(begin + offset * self._index._dtype_size, int(size) - offset if length is None else length)

    def flat(self):
        """All items, one after another, as they lie in the file."""
        return self._view(0, int(self.sizes.sum(dtype=np.int64)))

    @property
    def dtype(self):
        return self._index.dtype

    @property
    def sizes(self):
        return self._index.sizes

    def size(self, index):
        return self._index.sizes[index]

    @property
    def doc_idx(self):
        return self._index.doc_idx

    def get_doc_idx(self):
        return self._index._doc_idx

    def set_doc_idx(self, doc_idx_):
        self._index._doc_idx = doc_idx_


class _IndexWriter:
    def __init__(self, path, dtype, magic):
        self._path, self._dtype, self._magic = path, dtype, magic

    def __enter__(self):
        self._file = open(self._path, "wb")
        self._file.write(self._magic + struct.pack("<QB", _VERSION, code(self._dtype)))
        return self

    def write(self, sizes, doc_idx):
        pointers, _ = get_pointers_with_total(sizes, np.dtype(self._dtype).itemsize, np.int64)
        self._file.write(struct.pack("<QQ", len(sizes), len(doc_idx)))
        for numbers in (np.array(sizes, dtype=np.int32), pointers, np.array(doc_idx, dtype=np.int64)):
            self._file.write(numbers.tobytes())

    def __exit__(self, kind, value, traceback):
        self._file.close()


class MMapIndexedDatasetBuilder:
    """Writes what MMapIndexedDataset reads. `out_file`: the .bin; dtype: NumPy's or torch's."""

    def __init__(self, out_file, dtype=np.int64):
        self._dtype = dtypes[code(dtype)][0]
        self._data_file = open(out_file, "wb")
        self._sizes, self._doc_idx = [], [0]

    def add_item(self, tensor):
        self.add_item_numpy(tensor.numpy())

    def add_items(self, arr_list):
        for array in arr_list:
            self.add_item_numpy(array)

    def add_item_numpy(self, np_array):
        self._data_file.write(np.asarray(np_array, dtype=self._dtype).tobytes())
        self._sizes.append(np_array.size)

    def add_flat(self, np_array, sizes):
        """Items of these sizes, one after another."""
        self._data_file.write(np.asarray(np_array, dtype=self._dtype).tobytes())
        self._sizes.extend(sizes)

    def end_document(self):
        self._doc_idx.append(len(self._sizes))

    def merge_file_(self, another_file):
        """All of another one, after what is there."""
        index = MMapIndexedDataset.Index(index_file_path(another_file), skip_warmup=True)
        assert index.dtype == self._dtype, f"{another_file} has {np.dtype(index.dtype)}, and this one {np.dtype(self._dtype)}"
        self._doc_idx.extend(len(self._sizes) + index.doc_idx[1:])
        self._sizes.extend(index.sizes)
        with open(data_file_path(another_file), "rb") as file:
            shutil.copyfileobj(file, self._data_file)
        self._data_file.flush()

    def finalize(self, index_file):
        self._data_file.close()
        with MMapIndexedDataset.Index.writer(index_file, self._dtype) as index:
            index.write(self._sizes, self._doc_idx)


def create_mmap_dataset_builder(fname, dtype):
    return MMapIndexedDatasetBuilder(data_file_path(fname), dtype=dtype)


def close_mmap_dataset_builder(builder, fname):
    """All items since the last document are one."""
    builder.end_document()
    builder.finalize(index_file_path(fname))
