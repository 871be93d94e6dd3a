# Boots an emulated PC from a floppy disk: loads the program behind this sector to 0x10000, switches to 64 bits with AVX-512
# and matrix tiles enabled, and calls it. Used by scripts/emulate_amx.sh.
.set SECTORS, 700
.code16
.globl _start
_start:
  cli
  xorw %ax, %ax
  movw %ax, %ds
  movw %ax, %ss
  movw $0x7000, %sp
  movw $1, %si                # sector to read
  movw $0x1000, %di           # segment to read it to
read:
  movw %si, %ax
  xorw %dx, %dx
  movw $18, %cx               # sectors of a track
  divw %cx
  movb %dl, %cl
  incb %cl
  xorw %dx, %dx
  movw $2, %bx                # heads
  divw %bx
  movb %al, %ch
  movb %dl, %dh
  movb $0, %dl
  movw %di, %es
  xorw %bx, %bx
  movw $0x0201, %ax
  int $0x13
  jc failed
  addw $0x20, %di
  incw %si
  cmpw $SECTORS, %si
  jb read
  cli
  xorw %ax, %ax
  movw %ax, %es
  inb $0x92, %al              # A20
  orb $2, %al
  outb %al, $0x92
  lgdt gdtr
  movl %cr0, %eax
  orl $1, %eax
  movl %eax, %cr0
  ljmp $0x08, $protected
failed:
  movb $'!', %al
  outb %al, $0xe9
  hlt
.code32
protected:
  movw $0x10, %ax
  movw %ax, %ds
  movw %ax, %es
  movw %ax, %ss
  movl $0x1000, %edi          # page tables: the first gigabyte, to itself
  xorl %eax, %eax
  movl $0x1000, %ecx
  rep stosl
  movl $0x2003, 0x1000
  movl $0x3003, 0x2000
  movl $0x3000, %edi
  movl $0x83, %eax
  movl $512, %ecx
page:
  movl %eax, (%edi)
  addl $0x200000, %eax
  addl $8, %edi
  loop page
  movl $0x40620, %eax         # OSXSAVE, OSXMMEXCPT, OSFXSR, PAE
  movl %eax, %cr4
  movl $0x1000, %eax
  movl %eax, %cr3
  movl $0xc0000080, %ecx
  rdmsr
  orl $0x100, %eax            # LME
  wrmsr
  movl %cr0, %eax
  andl $~4, %eax
  orl $0x80000003, %eax
  movl %eax, %cr0
  ljmp $0x18, $long
.code64
long:
  movw $0x10, %ax
  movw %ax, %ds
  movw %ax, %es
  movw %ax, %ss
  movq $0x1f00000, %rsp
  xorl %ecx, %ecx
  movl $0x600e7, %eax         # x87, SSE, AVX, AVX-512, tiles
  xorl %edx, %edx
  xsetbv
  movq $0x10000, %rax
  call *%rax
  hlt
.align 8
gdt:
  .quad 0
  .quad 0x00cf9a000000ffff
  .quad 0x00cf92000000ffff
  .quad 0x00af9a000000ffff
gdtr:
  .word 31
  .long gdt
.org 510
.word 0xaa55
