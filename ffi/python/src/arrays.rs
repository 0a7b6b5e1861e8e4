//! Numbers out of Python: arrays of integers without an object for each, and sequences of ints.

use std::fmt::Display;

use pyo3::exceptions::{PyMemoryError, PyOverflowError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PySequence, PyString, PyTuple};

use crate::buffer::{View, has_buffer};
use crate::error::invalid;
use crate::memory::{is_torch_tensor, refused, type_name};

/// Places for so many items at most are made before the first is read: a sequence may say any length.
const ROOM_MAX: usize = 1 << 16;

/// Rows of `W` numbers: a two-dimensional integer buffer with `W` columns, a tuple of `W` one-dimensional ones, or a list (any
/// other sequence) of rows, each a sequence of `W` ints. One of the columns, but not all, may be an int: it is in every row then.
/// A tuple is never rows, and nothing else is columns: what was meant does not hang on how many rows there are. `what` names the
/// argument.
pub(crate) fn rows<const W: usize>(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<[u64; W]>> {
    if is_array(object) {
        return table(&Array::of(object, &|| format!("`{what}`"))?, what);
    }
    if let Ok(tuple) = object.cast::<PyTuple>()
        && !tuple.is_empty()
    {
        return beside_each_other(&columns::<W>(tuple, what)?, what);
    }
    let sequence = sequence(object, || format!("`{what}`"), "rows")?;
    let mut rows = Vec::with_capacity(sequence.len()?.min(ROOM_MAX));
    for (at, row) in sequence.try_iter()?.enumerate() {
        rows.push(row_of(&row?, at, what)?);
    }
    Ok(rows)
}

/// The rows of an array of two dimensions.
fn table<const W: usize>(array: &Array, what: &str) -> PyResult<Vec<[u64; W]>> {
    let &[count, width] = array.shape() else {
        return Err(invalid(&format!(
            "`{what}` has {} dimensions, not two; columns of one dimension go together in a tuple of {W}",
            array.shape().len()
        )));
    };
    if width != W {
        return Err(invalid(&format!("`{what}` has rows of {width} numbers, not of {W}")));
    }
    let mut rows = room(count)?;
    rows.resize(count, [0; W]);
    (0..W).try_for_each(|column| {
        let read = array.read(column, |row, number| rows[row][column] = number);
        read.map_err(|wrong| wrong.at(&format!("column {column} of `{what}`")))
    })?;
    Ok(rows)
}

/// One of several that make rows together.
enum Column {
    Array(Array),
    /// The same number in every row.
    Number(u64),
}

/// The columns that a tuple holds.
fn columns<const W: usize>(tuple: &Bound<'_, PyTuple>, what: &str) -> PyResult<Vec<Column>> {
    let mut columns = Vec::with_capacity(W);
    for (at, item) in tuple.iter().enumerate() {
        let place = || format!("column {at} of `{what}`");
        let array = if is_array(&item) { Some(Array::of(&item, &place)?) } else { None };
        match array {
            // Numbers of numpy and torch are arrays without dimensions.
            Some(array) if !array.shape().is_empty() => {
                if array.shape().len() != 1 {
                    return Err(invalid(&format!("{} has {} dimensions, not one", place(), array.shape().len())));
                }
                columns.push(Column::Array(array));
            }
            None if item.cast::<PySequence>().is_ok() && item.cast::<PyString>().is_err() => {
                return Err(invalid(&format!(
                    "`{what}` is a tuple with a `{}`: a tuple holds {W} columns, each an array of integers or an int; rows go in a list",
                    type_name(&item)
                )));
            }
            _ => columns.push(Column::Number(int(&item, place)?)),
        }
    }
    if columns.len() != W {
        return Err(invalid(&format!(
            "`{what}` is a tuple of {} columns, not of {W}; rows go in a list",
            columns.len()
        )));
    }
    Ok(columns)
}

fn beside_each_other<const W: usize>(columns: &[Column], what: &str) -> PyResult<Vec<[u64; W]>> {
    let lengths = columns.iter().enumerate().filter_map(|(at, column)| match column {
        Column::Array(array) => Some((at, array.shape()[0])),
        Column::Number(_) => None,
    });
    let lengths: Vec<_> = lengths.collect();
    let &[(first, count), ..] = &*lengths else {
        return Err(invalid(&format!("`{what}` has {W} numbers and no array of them: that is not a list of rows")));
    };
    if let Some((other, length)) = lengths.iter().find(|(_, length)| *length != count) {
        return Err(invalid(&format!(
            "columns of `{what}` differ in length: column {first} has {count} numbers, and column {other} has {length}"
        )));
    }
    let mut rows = room(count)?;
    rows.resize(count, [0; W]);
    for (at, column) in columns.iter().enumerate() {
        match column {
            Column::Number(number) => rows.iter_mut().for_each(|row| row[at] = *number),
            Column::Array(array) => array
                .read(0, |row, number| rows[row][at] = number)
                .map_err(|wrong| wrong.at(&format!("column {at} of `{what}`")))?,
        }
    }
    Ok(rows)
}

/// A row of its own: a sequence of ints, or an array.
fn row_of<const W: usize>(row: &Bound<'_, PyAny>, at: usize, what: &str) -> PyResult<[u64; W]> {
    let place = || format!("row {at} of `{what}`");
    let of_width = |width: usize| {
        let hint = if is_array(row) { "; columns go in a tuple" } else { "" };
        if width == W { Ok(()) } else { Err(invalid(&format!("{} has {width} numbers, not {W}{hint}", place()))) }
    };
    let mut numbers = [0; W];
    let column = |column: usize| move || format!("column {column} in row {at} of `{what}`");
    if let Ok(row) = row.cast::<PyTuple>() {
        of_width(row.len())?;
        for (at, number) in row.iter().enumerate() {
            numbers[at] = int(&number, column(at))?;
        }
        return Ok(numbers);
    }
    if is_array(row) {
        let array = Array::of(row, &place)?;
        let &[width] = array.shape() else {
            return Err(invalid(&format!("{} has {} dimensions, not one", place(), array.shape().len())));
        };
        of_width(width)?;
        array.read(0, |at, number| numbers[at] = number).map_err(|wrong| wrong.at(&place()))?;
        return Ok(numbers);
    }
    let row = sequence(row, place, "ints")?;
    of_width(row.len()?)?;
    for (at, number) in numbers.iter_mut().enumerate() {
        *number = int(&row.get_item(at)?, column(at))?;
    }
    Ok(numbers)
}

/// An argument that is a number from 0 on.
pub(crate) fn number(argument: &Bound<'_, PyAny>) -> PyResult<u64> {
    int(argument, || format!("the number {}", argument.repr().map_or(String::new(), |words| words.to_string())))
}

/// An int of Python, or what can be one, as the integers of numpy.
fn int(number: &Bound<'_, PyAny>, place: impl Fn() -> String) -> PyResult<u64> {
    number.extract().map_err(|error: PyErr| {
        let py = number.py();
        if error.is_instance_of::<PyTypeError>(py) {
            invalid(&format!("{} is not an int but `{}`", place(), type_name(number)))
        } else if error.is_instance_of::<PyOverflowError>(py) {
            let is_negative = number.lt(0).unwrap_or(false);
            let wrong = if is_negative { "negative" } else { "too large for 64 bits" };
            invalid(&format!("{} is {wrong}", place()))
        } else {
            error
        }
    })
}

fn sequence<'a, 'py>(
    object: &'a Bound<'py, PyAny>,
    place: impl Fn() -> String,
    of: &str,
) -> PyResult<&'a Bound<'py, PySequence>> {
    let is_text = object.is_instance_of::<PyString>();
    object.cast::<PySequence>().ok().filter(|_| !is_text).ok_or_else(|| {
        invalid(&format!("{} is `{}`: give a sequence of {of}, or an array of integers", place(), type_name(object)))
    })
}

fn is_array(object: &Bound<'_, PyAny>) -> bool {
    has_buffer(object) || is_torch_tensor(object)
}

fn room<T>(count: usize) -> PyResult<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|_| PyMemoryError::new_err(format!("no memory for {count} rows")))?;
    Ok(list)
}

/// An array of integers.
struct Array {
    view: View,
    item_bytes: usize,
    is_signed: bool,
}

/// A negative number in an array.
struct Negative {
    at: usize,
    number: String,
}

impl Negative {
    fn at(&self, place: &str) -> PyErr {
        invalid(&format!("{place} is {} at index {}: there are no numbers below 0 here", self.number, self.at))
    }
}

impl Array {
    /// The array that an object with the buffer protocol is, or a tensor of torch.
    fn of(object: &Bound<'_, PyAny>, place: &dyn Fn() -> String) -> PyResult<Self> {
        let flags = ffi::PyBUF_STRIDES | ffi::PyBUF_FORMAT;
        let view = if is_torch_tensor(object) {
            object.call_method0("numpy").and_then(|array| View::of(&array, flags))
        } else {
            View::of(object, flags)
        };
        let view = view.map_err(|error| {
            refused(object.py(), error, |why| format!("{} cannot be read as an array: {why}", place()))
        })?;
        let item_bytes = view.raw().itemsize.unsigned_abs();
        let wrong = |what: &str| {
            let format = view.format().to_string_lossy();
            invalid(&format!("{} is an array of {what} (format \"{format}\"); give one of integers", place()))
        };
        let is_signed = match view.format().to_bytes() {
            [b'>' | b'!', _] if item_bytes > 1 => return Err(wrong("numbers in another byte order")),
            [kind] | [b'@' | b'=' | b'<' | b'>' | b'!', kind] => match kind {
                b'b' | b'h' | b'i' | b'l' | b'q' | b'n' => true,
                b'B' | b'H' | b'I' | b'L' | b'Q' | b'N' => false,
                b'e' | b'f' | b'd' | b'g' => return Err(wrong("floating-point numbers")),
                b'?' => return Err(wrong("truth values")),
                b'O' => return Err(wrong("Python objects")),
                _ => return Err(wrong("other things than integers")),
            },
            _ => return Err(wrong("other things than integers")),
        };
        let is_flat = view.raw().suboffsets.is_null() && view.shape().len() == view.raw().ndim.unsigned_abs() as usize;
        if !matches!(item_bytes, 1 | 2 | 4 | 8) || !is_flat {
            return Err(wrong("numbers of another form"));
        }
        Ok(Self { view, item_bytes, is_signed })
    }

    fn shape(&self) -> &[usize] {
        self.view.shape()
    }

    /// Reads along the first dimension: of an array of two, the column of this number. `put` gets each index and number.
    fn read(&self, column: usize, put: impl FnMut(usize, u64)) -> Result<(), Negative> {
        let shape = self.shape();
        assert!(column == 0 || column < shape[1], "the column is one of the array's");
        let item_bytes = self.item_bytes as isize;
        let (stride, step) = match *self.view.strides() {
            [] => (item_bytes * shape.get(1).map_or(1, |&width| width as isize), item_bytes),
            [stride] => (stride, 0),
            [stride, step, ..] => (stride, step),
        };
        let first = self.view.raw().buf.cast::<u8>().cast_const().wrapping_offset(step * column as isize);
        let count = shape[0];
        // SAFETY: shape and strides are the view's own, which is held; no format but these was taken.
        unsafe {
            match (self.item_bytes, self.is_signed) {
                (1, false) => read::<u8>(first, stride, count, put),
                (1, true) => read::<i8>(first, stride, count, put),
                (2, false) => read::<u16>(first, stride, count, put),
                (2, true) => read::<i16>(first, stride, count, put),
                (4, false) => read::<u32>(first, stride, count, put),
                (4, true) => read::<i32>(first, stride, count, put),
                (_, false) => read::<u64>(first, stride, count, put),
                (_, true) => read::<i64>(first, stride, count, put),
            }
        }
    }
}

/// # Safety
/// There are `count` numbers of this type from `first` on, each `stride` bytes behind the one before, of any alignment.
unsafe fn read<T: Copy + Display + TryInto<u64>>(
    first: *const u8,
    stride: isize,
    count: usize,
    mut put: impl FnMut(usize, u64),
) -> Result<(), Negative> {
    for at in 0..count {
        let place = first.wrapping_offset(stride.wrapping_mul(at as isize)).cast::<T>();
        // Any number may be read, also one that is written meanwhile: it is checked afterwards.
        // SAFETY: the caller's promise.
        let number = unsafe { place.read_unaligned() };
        put(at, number.try_into().map_err(|_| Negative { at, number: number.to_string() })?);
    }
    Ok(())
}
