//! One value of an Arrow array in the canonical form.

use std::error::Error;
use std::fmt::Write;

use arrow::array::*;
use arrow::datatypes::*;

type Done = Result<(), Box<dyn Error>>;

macro_rules! number {
    ($array:expr, $type:ty, $row:expr) => {
        $array.as_primitive::<$type>().value($row)
    };
}

pub fn append(array: &dyn Array, row: usize, out: &mut Vec<u8>) -> Done {
    if array.is_null(row) || array.data_type() == &DataType::Null {
        out.push(b'~');
        return Ok(());
    }
    match array.data_type() {
        DataType::Boolean => out.push(if array.as_boolean().value(row) { b't' } else { b'f' }),
        DataType::Int8 => text(out, number!(array, Int8Type, row)),
        DataType::Int16 => text(out, number!(array, Int16Type, row)),
        DataType::Int32 => text(out, number!(array, Int32Type, row)),
        DataType::Int64 => text(out, number!(array, Int64Type, row)),
        DataType::UInt8 => text(out, number!(array, UInt8Type, row)),
        DataType::UInt16 => text(out, number!(array, UInt16Type, row)),
        DataType::UInt32 => text(out, number!(array, UInt32Type, row)),
        DataType::UInt64 => text(out, number!(array, UInt64Type, row)),
        DataType::Float16 => float(out, number!(array, Float16Type, row).to_f64()),
        DataType::Float32 => float(out, f64::from(number!(array, Float32Type, row))),
        DataType::Float64 => float(out, number!(array, Float64Type, row)),
        DataType::Decimal32(_, scale) => text(out, format!("m{}/{scale}", number!(array, Decimal32Type, row))),
        DataType::Decimal64(_, scale) => text(out, format!("m{}/{scale}", number!(array, Decimal64Type, row))),
        DataType::Decimal128(_, scale) => text(out, format!("m{}/{scale}", number!(array, Decimal128Type, row))),
        DataType::Decimal256(_, scale) => text(out, format!("m{}/{scale}", number!(array, Decimal256Type, row))),
        DataType::Utf8 => bytes(out, array.as_string::<i32>().value(row).as_bytes()),
        DataType::LargeUtf8 => bytes(out, array.as_string::<i64>().value(row).as_bytes()),
        DataType::Utf8View => bytes(out, array.as_string_view().value(row).as_bytes()),
        DataType::Binary => bytes(out, array.as_binary::<i32>().value(row)),
        DataType::LargeBinary => bytes(out, array.as_binary::<i64>().value(row)),
        DataType::BinaryView => bytes(out, array.as_binary_view().value(row)),
        DataType::FixedSizeBinary(_) => bytes(out, array.as_fixed_size_binary().value(row)),
        DataType::Date32 => text(out, format!("D{}", number!(array, Date32Type, row))),
        DataType::Date64 => text(out, format!("D{}", number!(array, Date64Type, row) / 86_400_000)),
        DataType::Time32(TimeUnit::Millisecond) => time(out, 'H', i64::from(number!(array, Time32MillisecondType, row)), 6),
        DataType::Time64(TimeUnit::Microsecond) => time(out, 'H', number!(array, Time64MicrosecondType, row), 3),
        DataType::Time64(TimeUnit::Nanosecond) => time(out, 'H', number!(array, Time64NanosecondType, row), 0),
        DataType::Timestamp(unit, _) => match unit {
            TimeUnit::Second => time(out, 'T', number!(array, TimestampSecondType, row), 9),
            TimeUnit::Millisecond => time(out, 'T', number!(array, TimestampMillisecondType, row), 6),
            TimeUnit::Microsecond => time(out, 'T', number!(array, TimestampMicrosecondType, row), 3),
            TimeUnit::Nanosecond => time(out, 'T', number!(array, TimestampNanosecondType, row), 0),
        },
        DataType::Duration(_) => {
            let ticks = arrow::compute::cast(&array.slice(row, 1), &DataType::Int64)?;
            text(out, number!(ticks, Int64Type, 0));
        }
        DataType::List(_) => list(out, array.as_list::<i32>().value(row).as_ref())?,
        DataType::LargeList(_) => list(out, array.as_list::<i64>().value(row).as_ref())?,
        DataType::FixedSizeList(_, _) => list(out, array.as_fixed_size_list().value(row).as_ref())?,
        DataType::Struct(_) => fields(out, array.as_struct(), row)?,
        DataType::Map(_, _) => {
            let entries = array.as_map().value(row);
            out.push(b'{');
            for number in 0..entries.len() {
                append(entries.column(0).as_ref(), number, out)?;
                out.push(b':');
                append(entries.column(1).as_ref(), number, out)?;
                out.push(b',');
            }
            out.push(b'}');
        }
        DataType::Dictionary(_, _) => {
            let dictionary = array.as_any_dictionary();
            append(dictionary.values().as_ref(), dictionary.normalized_keys()[row], out)?;
        }
        other => return Err(format!("no canonical form for {other}").into()),
    }
    Ok(())
}

fn fields(out: &mut Vec<u8>, array: &StructArray, row: usize) -> Done {
    out.push(b'(');
    for column in array.columns() {
        append(column.as_ref(), row, out)?;
        out.push(b',');
    }
    out.push(b')');
    Ok(())
}

fn list(out: &mut Vec<u8>, values: &dyn Array) -> Done {
    out.push(b'[');
    for number in 0..values.len() {
        append(values, number, out)?;
        out.push(b',');
    }
    out.push(b']');
    Ok(())
}

fn text(out: &mut Vec<u8>, value: impl ToString) {
    out.extend_from_slice(value.to_string().as_bytes());
}

fn float(out: &mut Vec<u8>, value: f64) {
    text(out, if value.is_nan() { "dnan".to_string() } else { format!("d{:016x}", value.to_bits()) });
}

fn bytes(out: &mut Vec<u8>, value: &[u8]) {
    let mut hex = String::from("x");
    value.iter().for_each(|byte| write!(hex, "{byte:02x}").expect("memory"));
    text(out, hex);
}

/// In nanoseconds, exactly.
fn time(out: &mut Vec<u8>, letter: char, value: i64, zeros: usize) {
    text(out, format!("{letter}{value}{}", if value == 0 { "" } else { &"000000000"[..zeros] }));
}
