package main

import (
	"fmt"
	"math/big"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/format"

	"torture/protocol"
)

// form of a leaf's values. `depths` by definition level: how much of the path is there, so that a level means the same
// whether a column is required or optional.
type form struct {
	depths   []int
	isNested bool
	plain    func(parquet.Value) string
}

func formOf(schema *parquet.Schema, path []string) form {
	found := form{depths: []int{}, isNested: len(path) > 1, plain: physical}
	var node parquet.Node = schema
	for depth, name := range path {
		for _, field := range node.Fields() {
			if field.Name() == name {
				node = field
				break
			}
		}
		if node.Optional() || node.Repeated() {
			found.depths = append(found.depths, depth)
			found.isNested = found.isNested || node.Repeated()
		}
	}
	found.depths = append(found.depths, len(path))
	if logical := node.Type().LogicalType(); logical != nil {
		found.plain = plainOf(logical)
	}
	return found
}

func (form form) of(value parquet.Value) string {
	text := "~"
	if !value.IsNull() {
		text = form.plain(value)
	}
	if form.isNested {
		return fmt.Sprintf("%d.%d:%s,", value.RepetitionLevel(), form.depths[value.DefinitionLevel()], text)
	}
	return text
}

func plainOf(logical *format.LogicalType) func(parquet.Value) string {
	switch kind := logical.Value.(type) {
	case *format.DecimalType:
		return func(value parquet.Value) string { return fmt.Sprintf("m%s/%d", unscaled(value), kind.Scale) }
	case *format.DateType:
		return func(value parquet.Value) string { return fmt.Sprintf("D%d", value.Int32()) }
	case *format.TimestampType:
		return inNanoseconds("T", kind.Unit)
	case *format.TimeType:
		return inNanoseconds("H", kind.Unit)
	case *format.IntType:
		if !kind.IsSigned {
			return unsigned
		}
	}
	return physical
}

func inNanoseconds(letter string, unit format.TimeUnit) func(parquet.Value) string {
	zeros := 0
	switch unit.Value.(type) {
	case *format.MilliSeconds:
		zeros = 6
	case *format.MicroSeconds:
		zeros = 3
	}
	return func(value parquet.Value) string {
		ticks := value.Int64()
		if value.Kind() == parquet.Int32 {
			ticks = int64(value.Int32())
		}
		return protocol.Time(letter, ticks, zeros)
	}
}

func unsigned(value parquet.Value) string {
	if value.Kind() == parquet.Int32 {
		return fmt.Sprint(value.Uint32())
	}
	return fmt.Sprint(value.Uint64())
}

// unscaled value of a decimal, whether it is stored as a number or as bytes.
func unscaled(value parquet.Value) string {
	switch value.Kind() {
	case parquet.Int32, parquet.Int64:
		return physical(value)
	}
	bytes := value.ByteArray()
	number := new(big.Int).SetBytes(bytes)
	if len(bytes) > 0 && bytes[0]&0x80 != 0 {
		number.Sub(number, new(big.Int).Lsh(big.NewInt(1), uint(8*len(bytes))))
	}
	return number.String()
}

func physical(value parquet.Value) string {
	switch value.Kind() {
	case parquet.Boolean:
		return protocol.Bool(value.Boolean())
	case parquet.Int32:
		return fmt.Sprint(value.Int32())
	case parquet.Int64:
		return fmt.Sprint(value.Int64())
	case parquet.Float:
		return protocol.Float(float64(value.Float()))
	case parquet.Double:
		return protocol.Float(value.Double())
	case parquet.Int96:
		return fmt.Sprint(value.Int96())
	default:
		return protocol.Bytes(value.ByteArray())
	}
}
