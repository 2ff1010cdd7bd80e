// Reads and writes Parquet files with parquet-go. A column is a leaf; a nested one is told by its levels.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/parquet-go/parquet-go"

	"torture/protocol"
)

func main() { protocol.Serve(read, write) }

func open(path string) (*parquet.File, func(), error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	stat, err := file.Stat()
	if err != nil {
		return nil, nil, err
	}
	opened, err := parquet.OpenFile(file, stat.Size())
	if err != nil {
		_ = file.Close()
		return nil, nil, err
	}
	return opened, func() { _ = file.Close() }, nil
}

func read(request protocol.Request) (*protocol.Columns, error) {
	file, closeFile, err := open(request.File)
	if err != nil {
		return nil, err
	}
	defer closeFile()
	columns := &protocol.Columns{Unsupported: map[string]string{}}
	for _, path := range file.Schema().Columns() {
		cells, err := column(file, path)
		columns.Add(strings.Join(path, "."), cells, err)
	}
	columns.Rows = int(file.NumRows())
	for number, cells := range columns.Cells {
		if len(cells) != columns.Rows {
			return nil, fmt.Errorf("%s has %d of %d rows", columns.Names[number], len(cells), columns.Rows)
		}
	}
	return columns, nil
}

func column(file *parquet.File, path []string) (cells protocol.Cells, err error) {
	defer protocol.Recover(&err)
	leaf, found := file.Schema().Lookup(path...)
	if !found {
		return nil, errors.New("no such column")
	}
	form := formOf(file.Schema(), path)
	cells = protocol.Cells{}
	for _, group := range file.RowGroups() {
		pages := group.ColumnChunks()[leaf.ColumnIndex].Pages()
		cells, err = appendPages(cells, pages, form)
		if closing := pages.Close(); err == nil {
			err = closing
		}
		if err != nil {
			return nil, err
		}
	}
	for row := range cells {
		cells[row] = append(cells[row], '\n')
	}
	return cells, nil
}

func appendPages(cells protocol.Cells, pages parquet.Pages, form form) (protocol.Cells, error) {
	values := make([]parquet.Value, 1024)
	for {
		page, err := pages.ReadPage()
		if errors.Is(err, io.EOF) {
			return cells, nil
		}
		if err != nil {
			return nil, err
		}
		reader := page.Values()
		for err == nil {
			var count int
			count, err = reader.ReadValues(values)
			for _, value := range values[:count] {
				if value.RepetitionLevel() == 0 {
					cells = append(cells, nil)
				}
				if len(cells) == 0 {
					return nil, errors.New("the first row continues another")
				}
				cells[len(cells)-1] = append(cells[len(cells)-1], form.of(value)...)
			}
		}
		parquet.Release(page)
		if !errors.Is(err, io.EOF) {
			return nil, err
		}
	}
}

// write the rows of a file with this library.
func write(request protocol.Request) error {
	from, closeFile, err := open(request.File)
	if err != nil {
		return err
	}
	defer closeFile()
	to, err := os.Create(request.To)
	if err != nil {
		return err
	}
	defer func() { _ = to.Close() }()
	options := []parquet.WriterOption{from.Schema(), parquet.Compression(codecOf(request.Codec))}
	if request.V2 {
		options = append(options, parquet.DataPageVersion(2))
	} else {
		options = append(options, parquet.DataPageVersion(1))
	}
	if request.RowGroupRows > 0 {
		options = append(options, parquet.MaxRowsPerRowGroup(request.RowGroupRows))
	}
	writer := parquet.NewWriter(to, options...)
	for _, group := range from.RowGroups() {
		if group.NumRows() == 0 {
			continue
		}
		rows := group.Rows()
		_, err := parquet.CopyRows(writer, rows)
		if err = errors.Join(err, rows.Close()); err != nil {
			return err
		}
	}
	return writer.Close()
}
