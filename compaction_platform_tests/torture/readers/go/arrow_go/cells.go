package main

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"torture/protocol"
)

var zeros = map[arrow.TimeUnit]int{arrow.Second: 9, arrow.Millisecond: 6, arrow.Microsecond: 3, arrow.Nanosecond: 0}

// appendCell appends the canonical form of one value.
func appendCell(out []byte, values arrow.Array, row int) ([]byte, error) {
	if values.IsNull(row) {
		return append(out, '~'), nil
	}
	switch typed := values.(type) {
	case array.ExtensionArray:
		return appendCell(out, typed.Storage(), row)
	case *array.Dictionary:
		return appendCell(out, typed.Dictionary(), typed.GetValueIndex(row))
	case *array.Struct:
		return appendStruct(out, typed, row)
	case *array.Map:
		start, end := typed.ValueOffsets(row)
		return appendMap(out, typed, int(start), int(end))
	case array.ListLike:
		start, end := typed.ValueOffsets(row)
		return appendList(out, typed.ListValues(), int(start), int(end))
	}
	text, err := plain(values, row)
	return append(out, text...), err
}

func appendStruct(out []byte, values *array.Struct, row int) ([]byte, error) {
	out = append(out, '(')
	var err error
	for number := range values.NumField() {
		if out, err = appendCell(out, values.Field(number), row); err != nil {
			return nil, err
		}
		out = append(out, ',')
	}
	return append(out, ')'), nil
}

func appendMap(out []byte, values *array.Map, start, end int) ([]byte, error) {
	out = append(out, '{')
	var err error
	for number := start; number < end; number++ {
		if out, err = appendCell(out, values.Keys(), number); err != nil {
			return nil, err
		}
		out = append(out, ':')
		if out, err = appendCell(out, values.Items(), number); err != nil {
			return nil, err
		}
		out = append(out, ',')
	}
	return append(out, '}'), nil
}

func appendList(out []byte, values arrow.Array, start, end int) ([]byte, error) {
	out = append(out, '[')
	var err error
	for number := start; number < end; number++ {
		if out, err = appendCell(out, values, number); err != nil {
			return nil, err
		}
		out = append(out, ',')
	}
	return append(out, ']'), nil
}

func plain(values arrow.Array, row int) (string, error) {
	switch typed := values.(type) {
	case *array.Boolean:
		return protocol.Bool(typed.Value(row)), nil
	case *array.Int8:
		return fmt.Sprint(typed.Value(row)), nil
	case *array.Int16:
		return fmt.Sprint(typed.Value(row)), nil
	case *array.Int32:
		return fmt.Sprint(typed.Value(row)), nil
	case *array.Int64:
		return fmt.Sprint(typed.Value(row)), nil
	case *array.Uint8:
		return fmt.Sprint(typed.Value(row)), nil
	case *array.Uint16:
		return fmt.Sprint(typed.Value(row)), nil
	case *array.Uint32:
		return fmt.Sprint(typed.Value(row)), nil
	case *array.Uint64:
		return fmt.Sprint(typed.Value(row)), nil
	case *array.Float16:
		return protocol.Float(float64(typed.Value(row).Float32())), nil
	case *array.Float32:
		return protocol.Float(float64(typed.Value(row))), nil
	case *array.Float64:
		return protocol.Float(typed.Value(row)), nil
	case *array.String:
		return protocol.Bytes(typed.Value(row)), nil
	case *array.LargeString:
		return protocol.Bytes(typed.Value(row)), nil
	case *array.Binary:
		return protocol.Bytes(typed.Value(row)), nil
	case *array.LargeBinary:
		return protocol.Bytes(typed.Value(row)), nil
	case *array.FixedSizeBinary:
		return protocol.Bytes(typed.Value(row)), nil
	}
	return temporalOrDecimal(values, row)
}

func temporalOrDecimal(values arrow.Array, row int) (string, error) {
	switch typed := values.(type) {
	case *array.Decimal128:
		scale := typed.DataType().(*arrow.Decimal128Type).Scale
		return fmt.Sprintf("m%s/%d", typed.Value(row).BigInt(), scale), nil
	case *array.Decimal256:
		scale := typed.DataType().(*arrow.Decimal256Type).Scale
		return fmt.Sprintf("m%s/%d", typed.Value(row).BigInt(), scale), nil
	case *array.Date32:
		return fmt.Sprintf("D%d", typed.Value(row)), nil
	case *array.Date64:
		return fmt.Sprintf("D%d", int64(typed.Value(row))/86_400_000), nil
	case *array.Time32:
		return protocol.Time("H", int64(typed.Value(row)), zeros[typed.DataType().(*arrow.Time32Type).Unit]), nil
	case *array.Time64:
		return protocol.Time("H", int64(typed.Value(row)), zeros[typed.DataType().(*arrow.Time64Type).Unit]), nil
	case *array.Timestamp:
		return protocol.Time("T", int64(typed.Value(row)), zeros[typed.DataType().(*arrow.TimestampType).Unit]), nil
	case *array.Duration:
		return fmt.Sprint(int64(typed.Value(row))), nil
	}
	return "", fmt.Errorf("no canonical form for %s", values.DataType())
}
