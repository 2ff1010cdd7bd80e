// Reads and writes Parquet files with arrow-go.
package main

import (
	"context"
	"errors"
	"os"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"torture/protocol"
)

func main() { protocol.Serve(read, write) }

func open(path string) (*pqarrow.FileReader, func(), error) {
	opened, err := file.OpenParquetFile(path, false)
	if err != nil {
		return nil, nil, err
	}
	reader, err := pqarrow.NewFileReader(opened, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		_ = opened.Close()
		return nil, nil, err
	}
	return reader, func() { _ = opened.Close() }, nil
}

func read(request protocol.Request) (*protocol.Columns, error) {
	reader, closeFile, err := open(request.File)
	if err != nil {
		return nil, err
	}
	defer closeFile()
	columns := &protocol.Columns{Unsupported: map[string]string{}}
	for _, field := range reader.Manifest.Fields {
		cells, err := column(reader, leaves(field))
		columns.Add(field.Field.Name, cells, err)
	}
	return columns, nil
}

func leaves(field pqarrow.SchemaField) []int {
	if field.ColIndex >= 0 && len(field.Children) == 0 {
		return []int{field.ColIndex}
	}
	found := []int{}
	for _, child := range field.Children {
		found = append(found, leaves(child)...)
	}
	return found
}

func column(reader *pqarrow.FileReader, leaves []int) (cells protocol.Cells, err error) {
	defer protocol.Recover(&err)
	groups := make([]int, reader.ParquetReader().NumRowGroups())
	for number := range groups {
		groups[number] = number
	}
	table, err := reader.ReadRowGroups(context.Background(), leaves, groups)
	if err != nil {
		return nil, err
	}
	defer table.Release()
	if table.NumCols() != 1 {
		return nil, errors.New("not one column")
	}
	cells = make(protocol.Cells, 0, table.NumRows())
	for _, chunk := range table.Column(0).Data().Chunks() {
		for row := range chunk.Len() {
			cell, err := appendCell(nil, chunk, row)
			if err != nil {
				return nil, err
			}
			cells = append(cells, append(cell, '\n'))
		}
	}
	return cells, nil
}

// write the rows of a file with this library.
func write(request protocol.Request) error {
	reader, closeFile, err := open(request.File)
	if err != nil {
		return err
	}
	defer closeFile()
	table, err := reader.ReadTable(context.Background())
	if err != nil {
		return err
	}
	defer table.Release()
	return writeTable(table, request)
}

func writeTable(table arrow.Table, request protocol.Request) error {
	to, err := os.Create(request.To)
	if err != nil {
		return err
	}
	defer func() { _ = to.Close() }()
	version := parquet.DataPageV1
	if request.V2 {
		version = parquet.DataPageV2
	}
	codecs := map[string]compress.Compression{
		"snappy": compress.Codecs.Snappy, "zstd": compress.Codecs.Zstd, "gzip": compress.Codecs.Gzip,
		"brotli": compress.Codecs.Brotli, "lz4_raw": compress.Codecs.Lz4Raw, "none": compress.Codecs.Uncompressed,
	}
	properties := parquet.NewWriterProperties(
		parquet.WithDataPageVersion(version),
		parquet.WithCompression(codecs[request.Codec]),
		parquet.WithDictionaryDefault(request.Dictionary == nil || *request.Dictionary),
		parquet.WithStats(true),
	)
	rows := request.RowGroupRows
	if rows == 0 {
		rows = max(table.NumRows(), 1)
	}
	return pqarrow.WriteTable(table, to, rows, properties, pqarrow.DefaultWriterProps())
}
