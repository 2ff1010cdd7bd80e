//! Reads and writes Parquet files with parquet-rs: one JSON request per line, one JSON answer per line.
//! The canonical form of values is described in docs/torture.md.

mod cells;

use std::error::Error;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow::record_batch::RecordBatch;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use parquet::file::properties::{WriterProperties, WriterVersion};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

type Answer = Result<Value, Box<dyn Error>>;

fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut output = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line.expect("a line")).expect("a JSON request");
        let answer = match guarded(|| answer(&request)) {
            Ok(value) => value,
            Err(error) => json!({"error": error}),
        };
        writeln!(output, "{answer}").and_then(|()| output.flush()).expect("somebody to answer");
    }
}

fn guarded<T>(work: impl FnOnce() -> Result<T, Box<dyn Error>>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.to_string()),
        Err(panic) => Err(format!("panic: {}", panic.downcast_ref::<String>().map_or("", |text| text))),
    }
}

fn answer(request: &Value) -> Answer {
    match request["do"].as_str() {
        Some("read") => read(request),
        Some("write") => write(request),
        other => Err(format!("unknown request {other:?}").into()),
    }
}

fn read(request: &Value) -> Answer {
    let path = request["file"].as_str().ok_or("no file")?;
    let names: Vec<String> =
        builder(path)?.schema().fields().iter().map(|field| field.name().clone()).collect();
    let mut unsupported = Map::new();
    let whole = guarded(|| batches(path, None)).map(|found| {
        let columns = (0..names.len()).map(|number| guarded(|| cells_of(&found, number))).collect::<Vec<_>>();
        (found.iter().map(RecordBatch::num_rows).sum::<usize>(), columns)
    });
    let (rows, columns) = match whole {
        Ok(found) => found,
        Err(error) if names.is_empty() => return Err(error.into()),
        Err(_) => one_by_one(path, names.len()),
    };
    let mut readable = Vec::new();
    for (name, column) in names.iter().zip(columns) {
        match column {
            Ok(cells) => readable.push((name, cells)),
            Err(error) => drop(unsupported.insert(name.clone(), error.into())),
        }
    }
    if readable.is_empty() && !names.is_empty() {
        return Err(unsupported.values().next().map_or(String::new(), Value::to_string).into());
    }
    let mut digests = Map::new();
    if request["unordered"].as_bool() == Some(true) {
        for (name, cells) in &readable {
            digests.insert((*name).clone(), json!([sum_of_rows(rows, &[cells])]));
        }
        let all = readable.iter().map(|(_, cells)| cells).collect::<Vec<_>>();
        digests.insert("*".into(), json!([sum_of_rows(rows, &all)]));
    } else {
        for (name, cells) in readable {
            digests.insert(name.clone(), digests_of(&cells, &request["cuts"])?);
        }
    }
    Ok(json!({"rows": rows, "columns": digests, "unsupported": unsupported}))
}

fn builder(path: &str) -> Result<ParquetRecordBatchReaderBuilder<File>, Box<dyn Error>> {
    Ok(ParquetRecordBatchReaderBuilder::try_new(File::open(path)?)?)
}

fn batches(path: &str, column: Option<usize>) -> Result<Vec<RecordBatch>, Box<dyn Error>> {
    let mut builder = builder(path)?;
    if let Some(number) = column {
        let mask = ProjectionMask::roots(builder.parquet_schema(), [number]);
        builder = builder.with_projection(mask);
    }
    Ok(builder.build()?.collect::<Result<Vec<_>, _>>()?)
}

type Cells = Vec<Vec<u8>>;

fn one_by_one(path: &str, columns: usize) -> (usize, Vec<Result<Cells, String>>) {
    let mut rows = 0;
    let found = (0..columns)
        .map(|number| {
            let found = guarded(|| batches(path, Some(number)))?;
            rows = found.iter().map(RecordBatch::num_rows).sum();
            guarded(|| cells_of(&found, 0))
        })
        .collect();
    (rows, found)
}

fn cells_of(batches: &[RecordBatch], number: usize) -> Result<Cells, Box<dyn Error>> {
    let mut found = Vec::new();
    for batch in batches {
        let column = batch.column(number);
        for row in 0..batch.num_rows() {
            let mut cell = Vec::new();
            cells::append(column.as_ref(), row, &mut cell)?;
            cell.push(b'\n');
            found.push(cell);
        }
    }
    Ok(found)
}

/// One digest for each cut (a number of rows); without cuts one for all.
fn digests_of(cells: &[Vec<u8>], cuts: &Value) -> Answer {
    let whole = vec![json!(cells.len())];
    let mut rest = cells;
    let mut found = Vec::new();
    for cut in cuts.as_array().unwrap_or(&whole) {
        let (now, later) = rest.split_at(rest.len().min(cut.as_u64().ok_or("a cut")? as usize));
        let mut digest = Sha256::new();
        now.iter().for_each(|cell| digest.update(cell));
        found.push(format!("{:x}", digest.finalize())[..32].to_string());
        rest = later;
    }
    Ok(json!(found))
}

/// A digest of rows in any order: those of several files add up to that of all their rows.
fn sum_of_rows(rows: usize, columns: &[&Cells]) -> String {
    let sum = (0..rows).fold(0_u128, |sum, row| {
        let digest = columns.iter().fold(Sha256::new(), |digest, cells| digest.chain_update(&cells[row]));
        sum.wrapping_add(u128::from_be_bytes(digest.finalize()[..16].try_into().expect("16 bytes")))
    });
    format!("{sum:032x}")
}

/// Read a file with this library and write its rows with this library.
fn write(request: &Value) -> Answer {
    let from = request["file"].as_str().ok_or("no file")?;
    let schema = builder(from)?.schema().clone();
    let codec = match request["codec"].as_str().unwrap_or("snappy") {
        "zstd" => Compression::ZSTD(ZstdLevel::default()),
        "gzip" => Compression::GZIP(GzipLevel::default()),
        "brotli" => Compression::BROTLI(BrotliLevel::default()),
        "lz4_raw" => Compression::LZ4_RAW,
        "none" => Compression::UNCOMPRESSED,
        _ => Compression::SNAPPY,
    };
    let version = if request["v2"] == json!(true) { WriterVersion::PARQUET_2_0 } else { WriterVersion::PARQUET_1_0 };
    let properties = WriterProperties::builder()
        .set_compression(codec)
        .set_writer_version(version)
        .set_dictionary_enabled(request["dictionary"] != json!(false))
        .set_max_row_group_row_count(Some(request["row_group_rows"].as_u64().unwrap_or(1 << 20) as usize))
        .build();
    let file = File::create(request["to"].as_str().ok_or("no place to write to")?)?;
    let mut writer = ArrowWriter::try_new(file, schema, Some(properties))?;
    for batch in batches(from, None)? {
        writer.write(&batch)?;
    }
    Ok(json!({"rows": writer.close()?.file_metadata().num_rows()}))
}
