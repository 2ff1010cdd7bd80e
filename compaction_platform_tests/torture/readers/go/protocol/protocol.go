// Package protocol answers one JSON request per line with one JSON line, and holds the canonical form of values,
// which docs/torture.md describes.
package protocol

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"os"
)

// Request is what a reader is asked.
type Request struct {
	Do           string `json:"do"`
	File         string `json:"file"`
	To           string `json:"to"`
	Cuts         []int  `json:"cuts"`
	Unordered    bool   `json:"unordered"`
	Codec        string `json:"codec"`
	V2           bool   `json:"v2"`
	Dictionary   *bool  `json:"dictionary"`
	RowGroupRows int64  `json:"row_group_rows"`
}

// Cells are the canonical forms of one column, one for each row.
type Cells [][]byte

// Columns are what was read: in the order of the schema.
type Columns struct {
	Rows        int
	Names       []string
	Cells       []Cells
	Unsupported map[string]string
}

// Add a column, or the reason why it cannot be read.
func (columns *Columns) Add(name string, cells Cells, err error) {
	if err != nil {
		columns.Unsupported[name] = err.Error()
		return
	}
	columns.Names, columns.Cells, columns.Rows = append(columns.Names, name), append(columns.Cells, cells), len(cells)
}

// Serve answers requests until the input ends.
func Serve(read func(Request) (*Columns, error), write func(Request) error) {
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 1<<26)
	for input.Scan() {
		var request Request
		answer, err := map[string]any{}, json.Unmarshal(input.Bytes(), &request)
		if err == nil {
			answer, err = answerTo(request, read, write)
		}
		if err != nil {
			answer = map[string]any{"error": err.Error()}
		}
		line, _ := json.Marshal(answer)
		fmt.Println(string(line))
	}
}

func answerTo(
	request Request, read func(Request) (*Columns, error), write func(Request) error,
) (answer map[string]any, err error) {
	defer Recover(&err)
	if request.Do == "write" {
		return map[string]any{}, write(request)
	}
	columns, err := read(request)
	if err != nil {
		return nil, err
	}
	if len(columns.Names) == 0 {
		for _, reason := range columns.Unsupported {
			return nil, fmt.Errorf("no column can be read: %s", reason)
		}
	}
	digests := map[string][]string{}
	if request.Unordered {
		digests["*"] = []string{sumOfRows(columns.Rows, columns.Cells...)}
		for number, name := range columns.Names {
			digests[name] = []string{sumOfRows(columns.Rows, columns.Cells[number])}
		}
	} else {
		for number, name := range columns.Names {
			digests[name] = digestsOf(columns.Cells[number], request.Cuts)
		}
	}
	return map[string]any{"rows": columns.Rows, "columns": digests, "unsupported": columns.Unsupported}, nil
}

// Recover makes an error of a panic.
func Recover(err *error) {
	if panicked := recover(); panicked != nil {
		*err = fmt.Errorf("panic: %v", panicked)
	}
}

// sumOfRows is a digest of rows in any order: those of several files add up to that of all their rows.
func sumOfRows(rows int, columns ...Cells) string {
	sum := new(big.Int)
	for row := range rows {
		digest := sha256.New()
		for _, cells := range columns {
			digest.Write(cells[row])
		}
		sum.Add(sum, new(big.Int).SetBytes(digest.Sum(nil)[:16]))
	}
	return fmt.Sprintf("%032x", sum.Mod(sum, new(big.Int).Lsh(big.NewInt(1), 128)))
}

func digestsOf(cells Cells, cuts []int) []string {
	if cuts == nil {
		cuts = []int{len(cells)}
	}
	found := make([]string, 0, len(cuts))
	for _, cut := range cuts {
		cut = min(cut, len(cells))
		digest := sha256.New()
		for _, cell := range cells[:cut] {
			digest.Write(cell)
		}
		found = append(found, hex.EncodeToString(digest.Sum(nil))[:32])
		cells = cells[cut:]
	}
	return found
}

// Bytes in the canonical form; text is its UTF-8.
func Bytes[T ~string | ~[]byte](value T) string { return fmt.Sprintf("x%x", []byte(value)) }

// Float in the canonical form: every NaN is the same one.
func Float(value float64) string {
	if math.IsNaN(value) {
		return "dnan"
	}
	return fmt.Sprintf("d%016x", math.Float64bits(value))
}

// Bool in the canonical form.
func Bool(value bool) string {
	if value {
		return "t"
	}
	return "f"
}

// Time in the canonical form: nanoseconds, exactly.
func Time(letter string, value int64, zeros int) string {
	if value == 0 {
		return letter + "0"
	}
	return fmt.Sprintf("%s%d%s", letter, value, "000000000"[:zeros])
}
